//! Which node an acquire gets: one pure function of seed, acquire ordinal, exclusions, available nodes and recorded
//! active counts (design section 8). An acquire names no request, so no promise by request is made.

use scenario::draw::{Field, below};
use scenario::model::Policy;

/// One node as the policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Instance name.
    pub name: &'a str,
    /// Weight of this instance; 0 is never drawn.
    pub weight: u32,
    /// Available and not excluded by the caller.
    pub eligible: bool,
    /// Locks out on it now.
    pub active: u64,
}

/// What a policy may know about one acquire.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The policy in force.
    pub policy: Policy,
    /// Seed of the scenario.
    pub seed: u64,
    /// Ordinal of the acquire over all hosts, from 1. Refused acquires count too.
    pub ordinal: u64,
    /// All nodes in pool order.
    pub nodes: &'a [Candidate<'a>],
    /// Instance names for `fixed-order`.
    pub order: &'a [String],
}

/// Index of the chosen node in `nodes`, or `None` when nothing is left to give.
#[must_use]
pub fn pick(question: &Question<'_>) -> Option<usize> {
    match question.policy {
        Policy::RoundRobin => round_robin(question),
        Policy::SeededWeighted => seeded_weighted(question),
        Policy::LeastActive => least_active(question),
        Policy::FixedOrder => fixed_order(question),
    }
}

/// Where a rotation of `len` places starts for this acquire.
fn start(ordinal: u64, len: usize) -> usize {
    let len = u64::try_from(len).expect("a pool is far smaller than 2^64");
    usize::try_from(ordinal.saturating_sub(1) % len).expect("below the pool size")
}

/// The start is taken over the whole pool, not over what is left of it: an excluded node must not shift the turn
/// of the others (contract mocks 4.3).
fn round_robin(question: &Question<'_>) -> Option<usize> {
    let len = question.nodes.len();
    if len == 0 {
        return None;
    }
    let first = start(question.ordinal, len);
    (0..len).map(|step| (first + step) % len).find(|index| question.nodes[*index].eligible)
}

fn seeded_weighted(question: &Question<'_>) -> Option<usize> {
    let weights = || question.nodes.iter().map(|node| if node.eligible { u64::from(node.weight) } else { 0 });
    let total: u64 = weights().sum();
    if total == 0 {
        return None;
    }
    let fields = [
        Field::Integer(question.seed),
        Field::Text("allocator"),
        Field::Text("acquire"),
        Field::Integer(question.ordinal),
    ];
    let mut drawn = below(&fields, total);
    for (index, weight) in weights().enumerate() {
        if drawn < weight {
            return Some(index);
        }
        drawn -= weight;
    }
    None
}

fn least_active(question: &Question<'_>) -> Option<usize> {
    let eligible = question.nodes.iter().enumerate().filter(|(_, node)| node.eligible);
    // `min_by_key` keeps the first of equals, which is pool order.
    eligible.min_by_key(|(_, node)| node.active).map(|(index, _)| index)
}

/// Names may stand several times in the order: it is a pattern, not a set.
fn fixed_order(question: &Question<'_>) -> Option<usize> {
    let len = question.order.len();
    if len == 0 {
        return None;
    }
    let first = start(question.ordinal, len);
    (0..len).find_map(|step| {
        let name = &question.order[(first + step) % len];
        question.nodes.iter().position(|node| node.eligible && node.name == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

    fn even(count: usize) -> Vec<Candidate<'static>> {
        NAMES[..count].iter().map(|name| Candidate { name, weight: 1, eligible: true, active: 0 }).collect()
    }

    fn ask(policy: Policy, ordinal: u64, nodes: &[Candidate<'_>], order: &[String]) -> Option<usize> {
        pick(&Question { policy, seed: 42, ordinal, nodes, order })
    }

    #[test]
    fn round_robin_takes_turns_and_skips() {
        let mut nodes = even(3);
        let turns = |nodes: &[Candidate<'_>]| -> Vec<Option<usize>> {
            (1..=6).map(|ordinal| ask(Policy::RoundRobin, ordinal, nodes, &[])).collect()
        };
        assert_eq!(turns(&nodes), [0, 1, 2, 0, 1, 2].map(Some));
        nodes[1].eligible = false;
        assert_eq!(turns(&nodes), [0, 2, 2, 0, 2, 2].map(Some));
    }

    #[test]
    fn least_active_breaks_ties_by_pool_order() {
        let mut nodes = even(3);
        nodes[0].active = 2;
        nodes[1].active = 1;
        nodes[2].active = 1;
        assert_eq!(ask(Policy::LeastActive, 9, &nodes, &[]), Some(1));
        nodes[1].eligible = false;
        assert_eq!(ask(Policy::LeastActive, 9, &nodes, &[]), Some(2));
    }

    #[test]
    fn fixed_order_repeats_its_pattern() {
        let nodes = even(3);
        let order: Vec<String> = ["c", "a", "c"].map(String::from).to_vec();
        let given: Vec<Option<usize>> =
            (1..=4).map(|ordinal| ask(Policy::FixedOrder, ordinal, &nodes, &order)).collect();
        assert_eq!(given, [2, 0, 2, 2].map(Some));
    }

    #[test]
    fn weights_are_respected() {
        let mut nodes = even(3);
        nodes[1].weight = 2;
        nodes[2].weight = 0;
        let mut counts = [0_u32; 3];
        for ordinal in 1..=9_000 {
            counts[ask(Policy::SeededWeighted, ordinal, &nodes, &[]).expect("a node is left")] += 1;
        }
        assert_eq!(counts[2], 0);
        assert!((2_800..=3_200).contains(&counts[0]), "{counts:?}");
        assert!((5_800..=6_200).contains(&counts[1]), "{counts:?}");
    }

    #[test]
    fn another_seed_gives_another_order() {
        let nodes = even(4);
        let given = |seed| -> Vec<Option<usize>> {
            let one = |ordinal| {
                pick(&Question { policy: Policy::SeededWeighted, seed, ordinal, nodes: &nodes, order: &[] })
            };
            (1..=40).map(one).collect()
        };
        assert_eq!(given(1), given(1));
        assert_ne!(given(1), given(2));
    }

    fn policies() -> impl Strategy<Value = Policy> {
        prop_oneof![
            Just(Policy::RoundRobin),
            Just(Policy::SeededWeighted),
            Just(Policy::LeastActive),
            Just(Policy::FixedOrder)
        ]
    }

    proptest! {
        #[test]
        fn only_an_eligible_node_is_given_and_one_is_given_whenever_there_is_one(
            policy in policies(),
            seed in any::<u64>(),
            ordinal in any::<u64>(),
            flags in prop::collection::vec((any::<bool>(), 1_u32..5, 0_u64..4), 0..6),
        ) {
            let nodes: Vec<Candidate<'_>> = flags
                .iter()
                .enumerate()
                .map(|(index, (eligible, weight, active))| Candidate {
                    name: NAMES[index], weight: *weight, eligible: *eligible, active: *active,
                })
                .collect();
            let order: Vec<String> = nodes.iter().map(|node| node.name.to_owned()).collect();
            let question = Question { policy, seed, ordinal, nodes: &nodes, order: &order };
            let given = pick(&question);
            prop_assert_eq!(given, pick(&question));
            prop_assert_eq!(given.is_some(), nodes.iter().any(|node| node.eligible));
            prop_assert!(given.is_none_or(|index| nodes[index].eligible));
        }
    }
}
