//! Where a replay differs from its capture, and why. An entry that explains nothing fails the test.

use refshard::personality::Personality;

/// Whose difference it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Both personalities: the replay itself, or a simplification.
    Both,
    /// Only intended: what design section 9 wants otherwise.
    Intended,
}

/// One kind of difference.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub who: Who,
    /// Names of cases; a star at the end stands for anything.
    pub cases: &'static [&'static str],
    /// Path; a star at the end stands for anything.
    pub path: &'static str,
    pub reason: &'static str,
    /// It is seen in some replays only, since it depends on time.
    pub sometimes: bool,
}

const fn entry(who: Who, cases: &'static [&'static str], path: &'static str, reason: &'static str) -> Entry {
    Entry { who, cases, path, reason, sometimes: false }
}

const fn sometimes(
    who: Who,
    cases: &'static [&'static str],
    path: &'static str,
    reason: &'static str,
) -> Entry {
    Entry { sometimes: true, ..entry(who, cases, path, reason) }
}

const TRUNCATED: &[&str] =
    &["stream-nodone", "stream-nousage*", "stream-partial-*", "cache-partial-replayed"];
const SHARED: &[&str] = &["ml-503-stream", "ml-503-nonstream", "ml-nousage-nonstream", "ml-reset-stream"];
const HISTORY: &[&str] = &["host-unreachable", "ml-errevent-stream", "validation-*"];
const NOT_KEPT: &[&str] = &["multi-ok-*", "multi-one-ml-503-*"];
const BROKEN_OFF: &str = "an answer without its end, its usage or its marker is a failure: error event, no marker, \
    not cached, `failed` after the timeout (design section 9)";

/// The table; the first entry that fits counts.
pub const EXPLAINED: &[Entry] = &[
    entry(
        Who::Intended,
        &["*"],
        "/accounting/header_lookups",
        "the id of the answer is the id of accounting (design section 9)",
    ),
    entry(
        Who::Intended,
        &["*"],
        "/client/*/json/choices/0/logprobs",
        "logprobs are shown to whom they were asked for; July never takes them away (finding J18)",
    ),
    entry(
        Who::Intended,
        &["host-*", "insufficient-balance", "ml-*", "multi-all-*"],
        "/client/*/request_id",
        "the answer of a failed race names its request",
    ),
    entry(Who::Intended, TRUNCATED, "/client/*", BROKEN_OFF),
    entry(Who::Intended, TRUNCATED, "/accounting/*", BROKEN_OFF),
    entry(Who::Intended, TRUNCATED, "/counters/*", BROKEN_OFF),
    entry(Who::Intended, TRUNCATED, "/drained/*", BROKEN_OFF),
    entry(
        Who::Intended,
        &["deactivate-while-running"],
        "*",
        "a last step takes in what waits before the session leaves memory (finding J8)",
    ),
    entry(
        Who::Intended,
        &["insufficient-balance"],
        "*",
        "a request that could not be prepared has failed, and accounting says so (finding J16)",
    ),
    entry(
        Who::Intended,
        &["ml-400-nonstream", "ml-errevent-stream"],
        "*",
        "the model server's own error reaches the client with its status, and such an attempt has failed",
    ),
    entry(
        Who::Intended,
        &["ml-503-nonstream"],
        "/client/0/status",
        "when every attempt is over, the client is told after the protocol's timeouts, not at a limit of its own",
    ),
    entry(
        Who::Intended,
        &["ml-503-nonstream"],
        "/accounting/*",
        "no answer is sent before its outcome is written",
    ),
    entry(
        Who::Intended,
        &["ml-*", "multi-all-*"],
        "/accounting/row/attempts/0/status",
        "a step with the confirmation precedes the votes (finding J7)",
    ),
    entry(
        Who::Intended,
        &["multi-all-*"],
        "/drained/*",
        "the votes count, and nothing stays started (finding J7)",
    ),
    entry(
        Who::Both,
        &["finalize-settle"],
        "/counters/*",
        "the capture sends one more chat after its finalize",
    ),
    entry(
        Who::Both,
        &["host-killed-mid-stream"],
        "/counters/*",
        "the host of the capture lost its counters; failures are counted here when the race is settled",
    ),
    entry(
        Who::Both,
        &["finalize-settle"],
        "/drained/*",
        "the capture settles too, after which nothing is listed any more",
    ),
    sometimes(
        Who::Both,
        &["burst-*"],
        "/accounting/row/*",
        "whether a later step has taken the confirmation in at that moment",
    ),
    sometimes(
        Who::Both,
        &["burst-*", "cache-two-concurrent-same-prompt"],
        "/counters/devshard_request_terminal_total{no_receipt_expected,payload_absent}",
        "pooled requests are spread over several escrows here, and each of them is synced",
    ),
    sometimes(
        Who::Both,
        &["host-killed-mid-stream"],
        "/client/0/events/content",
        "what was on its way when the host was lost",
    ),
    entry(
        Who::Both,
        &["host-killed-mid-stream"],
        "/accounting/*",
        "the capture sends one more chat, whose step takes the confirmation in",
    ),
    entry(
        Who::Both,
        &["host-killed-mid-stream"],
        "/drained/*",
        "the capture sends one more chat, whose step takes the confirmation in",
    ),
    entry(
        Who::Both,
        HISTORY,
        "/accounting/row/decision",
        "attempts had failed on the stack of the capture before",
    ),
    entry(
        Who::Both,
        &["host-unreachable"],
        "/counters/devshard_gateway_participant_transport_errors_total*",
        "calls of a sync are not counted here",
    ),
    entry(
        Who::Both,
        &["host-max-nonce"],
        "/client/4*",
        "the client of the capture gave up before the end that is awaited here",
    ),
    entry(
        Who::Both,
        &["host-max-nonce"],
        "/counters/*",
        "the capture ends before the timeout of the refused request; syncs here ask the host again",
    ),
    entry(
        Who::Both,
        SHARED,
        "/counters/*",
        "two cases of the capture share one set of counters; failures are counted when the race is settled",
    ),
    entry(
        Who::Both,
        &["burst-50-weight-1000"],
        "/client/1",
        "the capture lists its only kind of answer twice",
    ),
    entry(Who::Both, NOT_KEPT, "/client/4/json", "the capture does not keep this body"),
    entry(Who::Both, NOT_KEPT, "/client/5/events", "the capture does not keep this body"),
    entry(
        Who::Both,
        &["multi-one-ml-503-*"],
        "/accounting/row/attempts/0*",
        "the first nonce belongs to the broken host here, to another one in the capture",
    ),
    sometimes(
        Who::Both,
        &["validation-*", "multi-*"],
        "/accounting/row/*",
        "how far validation has come at that moment",
    ),
    entry(Who::Both, &["validation-*"], "/accounting/outcomes/success", "the capture sends more chats"),
    entry(Who::Both, &["validation-*"], "/counters/*", "the capture sends more chats"),
    sometimes(
        Who::Both,
        &["validation-*", "multi-*"],
        "/drained/*",
        "how many attempts there were, how far validation has come, and which waits have passed",
    ),
    sometimes(
        Who::Both,
        &["multi-*"],
        "/counters/*",
        "how many validations, syncs and extra attempts there are depends on time and on the history of the \
         stack, which begins fresh here",
    ),
];

/// Captured cases that are not replayed here, and what covers them.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("burst-20-weights-gone", "the cap goes with the next poll: `weights_come_and_go` in gateway_more"),
    ("cache-cross-escrow", "`an_identical_request_is_replayed_with_a_fresh_id` in gateway_races"),
    ("gateway-sigterm-mid-stream", "`a_restart_continues_the_nonces` in gateway_races, July in july"),
    ("ha-pair-child-dead-router-502", "a router passes a 502 on: `program`"),
    ("ha-pair-failover", "replicas share one database file: `replicas`"),
    ("load-probation-deferred-answer", "`a_complete_answer_of_hosts_in_probation_is_held_back` in july"),
    ("multi-as-generated", "one router over hosts of several participants: a topology nobody should run"),
    ("multi-host-killed-mid-stream", "as host-killed-mid-stream, whose host is the only one"),
    ("multi-load-ghosts", "`throttled_hosts_leave_ghosts_and_then_nothing` in july"),
    ("multi-one-ml-partial-reset", "as stream-partial-reset, with the history of earlier cases"),
    ("multi-one-ml-slow-first-token", "as the fresh one, with the history of earlier cases"),
    ("multi-one-ml-slow-nonstream", "as the fresh one, with the history of earlier cases"),
    ("multi-one-ml-slow-receipt-timeout-1s", "as the fresh one, with the history of earlier cases"),
    ("multi-sharedpg-direct-hybrid", "one database for several participants: refused by the design"),
    ("multi-sharedpg-direct-legacy", "one database for several participants: refused by the design"),
    (
        "multi-validation-collection",
        "`a_round_of_sync_waits_for_the_work_that_it_brought` in the end-to-end tests",
    ),
    ("validation-threshold-50", "the threshold comes from the chain: `host`"),
    ("validation-unpatched-chain", "the reference hosts check payload requests without the chain"),
];

fn fits(pattern: &str, text: &str) -> bool {
    // One star stands for anything at its place.
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => {
            text.len() >= before.len() + after.len() && text.starts_with(before) && text.ends_with(after)
        }
    }
}

fn concerns(entry: &Entry, personality: Personality) -> bool {
    match entry.who {
        Who::Both => true,
        Who::Intended => personality == Personality::Intended,
    }
}

/// Entries of a personality with their places.
pub fn of(personality: Personality) -> impl Iterator<Item = (usize, &'static Entry)> {
    EXPLAINED.iter().enumerate().filter(move |(_, entry)| concerns(entry, personality))
}

/// The entry that explains a difference.
pub fn find(personality: Personality, case: &str, difference: &str) -> Option<usize> {
    let path = difference.split(": ").next().unwrap_or_default();
    of(personality)
        .find(|(_, entry)| entry.cases.iter().any(|name| fits(name, case)) && fits(entry.path, path))
        .map(|(place, _)| place)
}

/// What makes a finding of July in a capture: no reason may take a difference there on that personality, however wide
/// its star is.
pub const FINDINGS: &[(&str, &str, &[&str])] = &[
    (
        "J1",
        "stream-partial-close",
        &["/client/0/events/done", "/client/0/events/finish", "/accounting/outcomes/success"],
    ),
    (
        "J2",
        "cache-partial-replayed",
        &["/client/1/events/content", "/client/1/events/done", "/client/1/events/finish"],
    ),
    ("J6", "ml-503-stream", &["/client/0/status", "/client/0/json", "/accounting/outcomes/failed"]),
    ("J7", "multi-all-ml-503-stream", &["/client/0/status", "/accounting/outcomes/failed"]),
    (
        "J8",
        "deactivate-while-running",
        &["/client/0/events/done", "/accounting/outcomes/success", "/drained/outcomes"],
    ),
    (
        "J16",
        "insufficient-balance",
        &["/client/0/status", "/accounting/outcomes/running", "/drained/outcomes"],
    ),
    ("J17", "cancel-mid-stream", &["/client/0/end", "/accounting/outcomes/success"]),
    ("J18", "ok-nonstream-nologprobs-false", &["/client/0/json/choices/0/logprobs"]),
    (
        "J19",
        "host-killed-mid-stream",
        &["/client/0/status", "/client/0/events/error", "/client/0/events/done"],
    ),
    ("J20", "ok-stream", &["/accounting/header_lookups", "/client/0/request_id"]),
];
