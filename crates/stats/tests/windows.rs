//! Windows of time: merged shards against one run, in any order, with nothing lost.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use stats::{Windows, WindowsForm};

type Event = (u64, u8, Option<u64>);

/// Offsets of all magnitudes, classes, and latencies for some.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let offset_us = (0_u32..64, any::<u64>()).prop_map(|(bits, draw)| draw >> bits);
    vec((offset_us, 0_u8..3, prop::option::of(0_u64..1_000_000)), 0..80)
}

fn record<'a>(windows: &mut Windows<u8>, events: impl IntoIterator<Item = &'a Event>) {
    for (offset_us, class, latency_us) in events {
        windows.record(*offset_us, class, *latency_us);
    }
}

proptest! {
    #[test]
    fn merged_shards_equal_one_run(
        events in events(),
        cut in any::<prop::sample::Index>(),
        width_us in 1_u64..2_000_000,
        windows_max in 2_usize..20,
    ) {
        let new = || Windows::new(width_us, windows_max).unwrap();
        let (mut whole, mut left, mut right) = (new(), new(), new());
        record(&mut whole, &events);
        let cut = cut.index(events.len() + 1);
        record(&mut left, &events[..cut]);
        record(&mut right, &events[cut..]);
        let mut other_way = right.clone();
        let read = serde_json::from_str::<WindowsForm<u8>>(
            &serde_json::to_string(&WindowsForm::from(&right)).unwrap(),
        );
        left.merge(&Windows::try_from(read.unwrap()).unwrap()).unwrap();
        prop_assert_eq!(&left, &whole);
        let mut first = new();
        record(&mut first, &events[..cut]);
        other_way.merge(&first).unwrap();
        prop_assert_eq!(&other_way, &whole);
    }

    #[test]
    fn every_event_is_in_the_window_of_its_offset(
        events in events(),
        width_us in 1_u64..2_000_000,
        windows_max in 2_usize..20,
    ) {
        let mut windows = Windows::new(width_us, windows_max).unwrap();
        record(&mut windows, &events);
        prop_assert!(windows.iter().count() <= windows_max);
        prop_assert_eq!(windows.width_us(), width_us << windows.doublings());
        let mut expected = BTreeMap::<(u64, u8), u64>::new();
        for (offset_us, class, _) in &events {
            *expected.entry((offset_us / windows.width_us(), *class)).or_default() += 1;
        }
        let found: BTreeMap<(u64, u8), u64> = windows
            .iter()
            .flat_map(|(start_us, window)| {
                window.counts().iter().map(move |entry| ((start_us, entry.class), entry.count))
            })
            .map(|((start_us, class), count)| ((start_us / windows.width_us(), class), count))
            .collect();
        prop_assert_eq!(found, expected);
        // no wider than the last event needs
        if windows.doublings() > 0 {
            let last = events.iter().map(|event| event.0).max().unwrap();
            prop_assert!(last / (windows.width_us() / 2) >= windows_max as u64);
        }
        let latencies = windows.iter().map(|(_, window)| window.latency().count()).sum::<u64>();
        prop_assert_eq!(latencies, events.iter().filter(|event| event.2.is_some()).count() as u64);
    }
}
