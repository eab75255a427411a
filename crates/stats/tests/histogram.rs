//! The histogram against an exact sort, merged against whole, and its written form against hostile input.

use proptest::collection::vec;
use proptest::prelude::*;
use stats::{
    BUCKETS_MAX, COUNT_MAX, Histogram, HistogramError, Percentile, RANGE_MAX_US, SparseHistogram, Summary,
};

/// Values of all magnitudes: even numbers would nearly all be huge.
fn value_us() -> impl Strategy<Value = u64> {
    (0_u32..37, any::<u64>()).prop_map(|(bits, draw)| (draw & ((2 << bits) - 1)).min(RANGE_MAX_US))
}

/// Those and, now and then, values that no bucket takes.
fn any_value_us() -> impl Strategy<Value = u64> {
    prop_oneof![8 => value_us(), 1 => RANGE_MAX_US + 1.., 1 => Just(0), 1 => Just(u64::MAX)]
}

fn percentile() -> impl Strategy<Value = Percentile> {
    prop_oneof![
        (1_u32..1_000_000).prop_map(|ppm| Percentile::from_ppm(ppm).expect("within the range")),
        prop::sample::select(&Percentile::SUMMARY[..]),
    ]
}

fn round_trip(histogram: &Histogram) -> Histogram {
    let json = serde_json::to_string(histogram).expect("a histogram is JSON");
    serde_json::from_str(&json).expect("what was written is read")
}

proptest! {
    #[test]
    fn percentiles_are_within_a_thousandth_above_the_exact_ones(
        mut values in vec(value_us(), 1..400),
        percentile in percentile(),
    ) {
        let histogram: Histogram = values.iter().copied().collect();
        values.sort_unstable();
        let exact = percentile.of_sorted(&values).unwrap();
        let found = histogram.percentile_us(percentile).unwrap();
        prop_assert!(found >= exact, "{found} below {exact}");
        prop_assert!((found - exact) * 1000 <= exact, "{found} is more than 0.1 % above {exact}");
    }

    #[test]
    fn percentiles_lie_between_minimum_and_maximum_and_rise(
        values in vec(any_value_us(), 1..100),
        mut ascending in [percentile(), percentile(), percentile()],
    ) {
        let histogram: Histogram = values.iter().copied().collect();
        ascending.sort_unstable();
        let found = histogram.percentiles_us(ascending).unwrap();
        prop_assert!(found.is_sorted());
        prop_assert!(histogram.min_us().unwrap() <= found[0]);
        prop_assert!(found[2] <= histogram.max_us().unwrap());
        for (one, all) in ascending.into_iter().zip(found) {
            prop_assert_eq!(histogram.percentile_us(one), Some(all));
        }
    }

    #[test]
    fn count_sum_minimum_and_maximum_are_exact(values in vec(any_value_us(), 0..100)) {
        let summary = values.iter().copied().collect::<Histogram>().summary();
        let mut sorted = values;
        sorted.sort_unstable();
        let exact = Summary::of_sorted(&sorted);
        prop_assert_eq!(
            (summary.n, summary.min_us, summary.max_us, summary.mean_us, summary.low_n),
            (exact.n, exact.min_us, exact.max_us, exact.mean_us, exact.low_n)
        );
    }

    #[test]
    fn merged_shards_equal_the_whole_in_any_order(
        values in vec((any_value_us(), 0_usize..4), 0..200),
        order in Just([0_usize, 1, 2, 3]).prop_shuffle(),
    ) {
        let whole: Histogram = values.iter().map(|(value, _)| *value).collect();
        let mut merged = Histogram::new();
        for shard in order {
            let part: Histogram =
                values.iter().filter(|(_, at)| *at == shard).map(|(value, _)| *value).collect();
            // each shard goes through a file, as those of other processes do
            merged.merge(&round_trip(&part));
        }
        prop_assert_eq!(merged.summary(), whole.summary());
        prop_assert_eq!(merged, whole);
    }

    #[test]
    fn a_limit_by_counters_agrees_with_the_exact_percentile(
        mut values in vec(0_u64..50, 1..60),
        limit in 0_u64..50,
        percentile in percentile(),
    ) {
        let over = values.iter().filter(|value| **value > limit).count() as u64;
        values.sort_unstable();
        let exact = percentile.of_sorted(&values).unwrap();
        prop_assert_eq!(percentile.within_limit(values.len() as u64, over), Some(exact <= limit));
    }

    #[test]
    fn a_changed_written_form_is_refused_or_still_adds_up(
        values in vec(any_value_us(), 0..20),
        field in 0_usize..7,
        at in any::<prop::sample::Index>(),
        number in any_value_us(),
    ) {
        let mut form = SparseHistogram::from(&values.into_iter().collect::<Histogram>());
        match field {
            0 => form.count = number,
            1 => form.sum_us = number.to_string(),
            2 => form.min_us = Some(number),
            3 => form.max_us = Some(number),
            4 => form.over_range = number,
            5 if !form.buckets.is_empty() => at.get_mut(&mut form.buckets).0 = number,
            6 if !form.buckets.is_empty() => at.get_mut(&mut form.buckets).1 = number,
            _ => form.min_us = None,
        }
        if let Ok(read) = Histogram::try_from(&form) {
            // what is accepted must be a histogram that could have been written
            prop_assert_eq!(SparseHistogram::from(&read), form);
            let summary = read.summary();
            prop_assert!(summary.p50_us <= summary.max_us && summary.min_us <= summary.p50_us);
        }
    }
}

#[test]
fn written_form_is_stable() {
    let histogram: Histogram = [0, 7, 7, 5000, RANGE_MAX_US + 1].into_iter().collect();
    let json = serde_json::to_string(&histogram).unwrap();
    let expected = r#"{"version":1,"digits":3,"count":5,"sum_us":"86400005015","min_us":0,"max_us":86400000001,"over_range":1,"buckets":[[0,1],[7,2],[5000,1]]}"#;
    assert_eq!(json, expected);
    assert_eq!(round_trip(&histogram), histogram);
    let empty = Histogram::new();
    assert!(serde_json::to_string(&empty).unwrap().contains(r#""min_us":null"#));
    assert_eq!(round_trip(&empty), empty);
    // keys that a later writer adds do not stop this reader
    let added = expected.replace(r#""digits""#, r#""unit":"us","digits""#);
    assert_eq!(serde_json::from_str::<Histogram>(&added).unwrap(), histogram);
}

#[test]
fn hostile_forms_are_refused_with_a_reason() {
    let good = SparseHistogram::from(&[3_u64, 4000, 4001, 90_000].into_iter().collect::<Histogram>());
    assert!(Histogram::try_from(&good).is_ok());
    type Spoil = fn(&mut SparseHistogram);
    let extremes = HistogramError::Extremes;
    let spoils: [(Spoil, HistogramError); 18] = [
        (|form| form.version = 2, HistogramError::Version { version: 2, digits: 3 }),
        (|form| form.digits = 2, HistogramError::Version { version: 1, digits: 2 }),
        (|form| form.buckets[1].0 = 4001, HistogramError::Bucket { index: 1, low_us: 4001 }),
        (|form| form.buckets[1].0 = 3, HistogramError::Bucket { index: 1, low_us: 3 }),
        (|form| form.buckets[2].0 = u64::MAX, HistogramError::Bucket { index: 2, low_us: u64::MAX }),
        (|form| form.buckets.swap(0, 1), HistogramError::Bucket { index: 1, low_us: 3 }),
        (|form| form.buckets[1].1 = 0, HistogramError::EmptyBucket { index: 1 }),
        (|form| form.buckets[1].1 = u64::MAX, HistogramError::Count { claimed: 4, held: u64::MAX }),
        (
            |form| {
                form.over_range = COUNT_MAX;
                form.count = COUNT_MAX + 4;
            },
            HistogramError::Count { claimed: COUNT_MAX + 4, held: COUNT_MAX + 4 },
        ),
        (|form| form.count = 5, HistogramError::Count { claimed: 5, held: 4 }),
        (|form| form.min_us = None, extremes),
        (|form| form.min_us = Some(4000), HistogramError::Extremes),
        (|form| form.max_us = Some(u64::MAX), HistogramError::Extremes),
        (|form| form.sum_us = "1".into(), HistogramError::Sum),
        (|form| form.sum_us = "98196".into(), HistogramError::Sum),
        (|form| form.sum_us = "NaN".into(), HistogramError::Sum),
        (|form| form.sum_us = "9".repeat(1000), HistogramError::Sum),
        (|form| form.sum_us.insert(0, '+'), HistogramError::Sum),
    ];
    for (index, (spoil, reason)) in spoils.into_iter().enumerate() {
        let mut form = good.clone();
        spoil(&mut form);
        assert_eq!(Histogram::try_from(&form), Err(reason), "case {index}");
    }
    let mut empty = SparseHistogram::from(&Histogram::new());
    empty.sum_us = "1".into();
    assert_eq!(Histogram::try_from(&empty), Err(HistogramError::Sum));
    empty.max_us = Some(0);
    assert_eq!(Histogram::try_from(&empty), Err(HistogramError::Extremes));
    let mut one = SparseHistogram::from(&[5000_u64].into_iter().collect::<Histogram>());
    one.max_us = Some(5001);
    assert_eq!(Histogram::try_from(&one), Err(HistogramError::Extremes));
}

#[test]
fn an_endless_list_of_buckets_is_cut_while_it_is_read() {
    let head = r#"{"version":1,"digits":3,"count":1,"sum_us":"0","min_us":0,"max_us":0,"over_range":0,"#;
    let json = format!("{head}\"buckets\":[{}[0,1]]}}", "[0,1],".repeat(BUCKETS_MAX));
    let refused = serde_json::from_str::<Histogram>(&json).unwrap_err().to_string();
    assert!(refused.contains("more than 28672 items"), "{refused}");
    let mut form = SparseHistogram::from(&Histogram::new());
    form.buckets = vec![(0, 1); BUCKETS_MAX + 1];
    assert_eq!(Histogram::try_from(&form), Err(HistogramError::TooManyBuckets(BUCKETS_MAX + 1)));
}

#[test]
fn every_bucket_of_the_range_fits_the_written_form() {
    // one value in each bucket: 2048 of width 1, then 1024 for each doubling
    let next = |low: &u64| Some(low + (1 << (low.ilog2() - 10)));
    let wide = std::iter::successors(Some(2048_u64), next).take_while(|low| *low <= RANGE_MAX_US);
    let histogram: Histogram = (0..2048).chain(wide).collect();
    assert!(histogram.buckets().count() <= BUCKETS_MAX);
    assert!(histogram.buckets().all(|bucket| bucket.count == 1 && bucket.low_us <= bucket.high_us));
    assert_eq!(round_trip(&histogram), histogram);
}

#[test]
fn schemas_name_every_field() {
    let schema = serde_json::to_string(&schemars::schema_for!(Histogram)).unwrap();
    for key in ["version", "digits", "count", "sum_us", "min_us", "max_us", "over_range", "buckets"] {
        assert!(schema.contains(&format!("\"{key}\":{{")), "{key} is missing in {schema}");
    }
    let schema = serde_json::to_string(&schemars::schema_for!(Summary)).unwrap();
    assert!(schema.contains("\"p999_us\":{") && schema.contains("\"low_n\":{"));
    let _ = schemars::schema_for!(stats::WindowsForm<String>);
    let _ = schemars::schema_for!(stats::SearchPlan);
}
