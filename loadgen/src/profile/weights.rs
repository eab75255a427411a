//! Shares by weight: exact for users, and as even as whole numbers allow for arrivals.

/// So many of `total` for each weight, exact where it divides; what is left over goes to the largest remainders, the
/// earlier one first.
#[must_use]
pub fn apportion(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: &u64| u128::from(total) * u128::from(*weight);
    let mut shares: Vec<u64> =
        weights.iter().map(|weight| u64::try_from(exact(weight) / sum).unwrap_or(u64::MAX)).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|place| (std::cmp::Reverse(exact(&weights[*place]) % sum), *place));
    let left = total - shares.iter().sum::<u64>();
    for place in order.into_iter().take(usize::try_from(left).unwrap_or_default()) {
        shares[place] += 1;
    }
    shares
}

/// Which weight each of `total` places in a row gets: shares are those of [`apportion`], spread evenly.
#[must_use]
pub fn spread(total: u64, weights: &[u64]) -> Vec<usize> {
    let shares = apportion(total, weights);
    let mut credit = vec![0_i128; shares.len()];
    (0..total)
        .map(|_| {
            for (credit, share) in credit.iter_mut().zip(&shares) {
                *credit += i128::from(*share);
            }
            let best = (0..credit.len()).rev().max_by_key(|place| credit[*place]).unwrap_or_default();
            credit[best] -= i128::from(total);
            best
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_thousand_users_at_70_20_10() {
        assert_eq!(apportion(1_000, &[70, 20, 10]), [700, 200, 100]);
        assert_eq!(apportion(1, &[70, 20, 10]), [1, 0, 0]);
        assert_eq!(apportion(3, &[1, 1]), [2, 1]);
        assert_eq!(apportion(5, &[0, 0]), [0, 0]);
        assert_eq!(spread(4, &[3, 1]).iter().filter(|place| **place == 0).count(), 3);
    }

    proptest! {
        #[test]
        fn shares_add_up_and_are_near(total in 0_u64..5_000, weights in prop::collection::vec(1_u64..100, 1..6)) {
            let shares = apportion(total, &weights);
            prop_assert_eq!(shares.iter().sum::<u64>(), total);
            let sum: u64 = weights.iter().sum();
            for (share, weight) in shares.iter().zip(&weights) {
                let exact = total as f64 * *weight as f64 / sum as f64;
                prop_assert!((*share as f64 - exact).abs() < 1.0);
            }
            let places = spread(total, &weights);
            for (place, share) in shares.iter().enumerate() {
                prop_assert_eq!(places.iter().filter(|found| **found == place).count() as u64, *share);
            }
        }
    }
}
