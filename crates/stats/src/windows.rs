//! Latency and outcomes over time: windows of equal width from the start of a run, bounded in number.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bounded;
use crate::histogram::Histogram;
use crate::packed::PackedHistogram;
use crate::sparse::COUNT_MAX;

/// Version of the written form.
pub const WINDOWS_VERSION: u32 = 1;

/// Widest first width: one day in microseconds.
pub const WIDTH_MAX_US: u64 = 24 * 3_600 * 1_000_000;

/// Most windows that may be asked for.
pub const WINDOWS_MAX: usize = 4096;

/// Most classes in one window; a class set is closed and small (design section 6).
pub const CLASSES_MAX: usize = 256;

/// Latencies that a closed window gathers before it is packed anew.
const LATE_MAX: usize = 128;

/// Windows of time, each with a count per class and a latency histogram.
///
/// Policy when full: an event past the last allowed window doubles the width until it fits, and
/// neighbours are merged in pairs. Nothing is dropped, only resolution in time; [`Windows::doublings`]
/// says how often. The result depends on what was recorded, not on the order, so that merged shards equal
/// one run. `K` is a small closed set, such as an enum: memory is classes × windows. Only the newest window has room
/// for every bucket; those before it are packed, and still take what comes late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows<K> {
    shape: Shape,
    doublings: u32,
    /// From offset 0 on, without gaps, to the last one that holds something.
    rows: Vec<Window<K>>,
}

/// What was asked for; only windows of the same shape merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    first_width_us: u64,
    windows_max: usize,
}

/// One window of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window<K> {
    /// Ascending by class, no count of 0.
    counts: Vec<ClassCount<K>>,
    latency: Latency,
}

/// The latencies of a window. How they are held says nothing about them: equal values are equal.
#[derive(Clone, Debug)]
enum Latency {
    Open(Histogram),
    /// What ends long after its first token is recorded into windows of the past, a value at a time.
    Closed {
        packed: PackedHistogram,
        late: Vec<u64>,
    },
}

impl Latency {
    fn record(&mut self, latency_us: u64) {
        match self {
            Self::Open(histogram) => histogram.record(latency_us),
            Self::Closed { late, .. } if late.len() < LATE_MAX => late.push(latency_us),
            Self::Closed { late, .. } => {
                late.push(latency_us);
                *self = Self::closed(&self.values());
            }
        }
    }

    fn closed(values: &Histogram) -> Self {
        Self::Closed { packed: PackedHistogram::from(values), late: Vec::new() }
    }

    fn close(&mut self) {
        if let Self::Open(histogram) = self {
            *self = Self::closed(histogram);
        }
    }

    fn values(&self) -> Cow<'_, Histogram> {
        match self {
            Self::Open(histogram) => Cow::Borrowed(histogram),
            Self::Closed { packed, late } => {
                let mut histogram = Histogram::from(packed);
                late.iter().for_each(|latency_us| histogram.record(*latency_us));
                Cow::Owned(histogram)
            }
        }
    }

    /// Adds all values of another one; closed only when both are, because the newest window is still recorded into.
    fn merge(&mut self, other: &Self) {
        if let (Self::Closed { packed, .. }, Self::Closed { packed: theirs, late }) = (&mut *self, other) {
            packed.merge(theirs);
            late.iter().for_each(|latency_us| self.record(*latency_us));
            return;
        }
        let mut values = self.values().into_owned();
        values.merge(&other.values());
        *self = Self::Open(values);
    }
}

impl PartialEq for Latency {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
    }
}

impl Eq for Latency {}

/// How many events of one class a window holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClassCount<K> {
    /// Class.
    pub class: K,
    /// Events, at least one.
    pub count: u64,
}

/// Why windows can't be made, merged or read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WindowsError {
    /// A width of nothing or of more than a day.
    #[error("window width of {0} µs; take 1 µs to one day")]
    Width(u64),
    /// Too few or too many windows.
    #[error("{0} windows; take 2 to 4096")]
    Number(usize),
    /// Merging needs the same first width and number on both sides.
    #[error(
        "windows of {ours_us} µs × {ours_max} and {theirs_us} µs × {theirs_max} can't be merged: give shards the same"
    )]
    Shape {
        /// First width here.
        ours_us: u64,
        /// Allowed number here.
        ours_max: usize,
        /// First width there.
        theirs_us: u64,
        /// Allowed number there.
        theirs_max: usize,
    },
    /// A written form of another version.
    #[error("windows of version {0}; this build reads version 1: use the build that wrote them")]
    Version(u32),
    /// The width is not the first width doubled as often as is claimed.
    #[error("window width of {width_us} µs is not {first_width_us} µs doubled {doublings} times")]
    Doublings {
        /// Width found.
        width_us: u64,
        /// First width found.
        first_width_us: u64,
        /// Doublings found.
        doublings: u32,
    },
    /// A start that is no multiple of the width, out of order, or past the allowed number.
    #[error("window {index} starts at {start_us} µs, which is out of order or no window of this width")]
    Start {
        /// Position in the list.
        index: usize,
        /// Its start.
        start_us: u64,
    },
    /// Classes of a window out of order, or a count of 0 or above 2^53.
    #[error("window {index} has classes out of order, or a count that is 0 or above 2^53")]
    Classes {
        /// Position in the list.
        index: usize,
    },
}

impl<K> Default for Window<K> {
    fn default() -> Self {
        Self { counts: Vec::new(), latency: Latency::Open(Histogram::new()) }
    }
}

impl<K: Ord + Clone> Window<K> {
    /// Events by class, ascending by class.
    #[must_use]
    pub fn counts(&self) -> &[ClassCount<K>] {
        &self.counts
    }

    /// Events of one class.
    #[must_use]
    pub fn count(&self, class: &K) -> u64 {
        self.counts.binary_search_by(|entry| entry.class.cmp(class)).map_or(0, |at| self.counts[at].count)
    }

    /// Events of all classes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, entry| sum.saturating_add(entry.count))
    }

    /// Latencies of those events that had one.
    #[must_use]
    pub fn latency(&self) -> Cow<'_, Histogram> {
        self.latency.values()
    }

    fn add(&mut self, class: &K, count: u64) {
        match self.counts.binary_search_by(|entry| entry.class.cmp(class)) {
            Ok(at) => self.counts[at].count = self.counts[at].count.saturating_add(count),
            Err(at) => self.counts.insert(at, ClassCount { class: class.clone(), count }),
        }
    }

    fn merge(&mut self, other: &Self) {
        other.counts.iter().for_each(|entry| self.add(&entry.class, entry.count));
        self.latency.merge(&other.latency);
    }

    fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

impl<K: Ord + Clone> Windows<K> {
    /// At most `windows_max` windows, at first `width_us` wide.
    ///
    /// # Errors
    /// A width outside 1 µs to one day, or a number outside 2 to 4096.
    pub fn new(width_us: u64, windows_max: usize) -> Result<Self, WindowsError> {
        if !(1..=WIDTH_MAX_US).contains(&width_us) {
            return Err(WindowsError::Width(width_us));
        }
        if !(2..=WINDOWS_MAX).contains(&windows_max) {
            return Err(WindowsError::Number(windows_max));
        }
        let shape = Shape { first_width_us: width_us, windows_max };
        Ok(Self { shape, doublings: 0, rows: Vec::new() })
    }

    /// Adds an event at `offset_us` after the start. The latency is left out for classes whose latency
    /// belongs to another population, such as failures (design load-and-mocks 2.6).
    pub fn record(&mut self, offset_us: u64, class: &K, latency_us: Option<u64>) {
        let window = self.window_at(offset_us);
        window.add(class, 1);
        if let Some(latency_us) = latency_us {
            window.latency.record(latency_us);
        }
    }

    /// Adds all events of another shard of the same run.
    ///
    /// # Errors
    /// Another first width or number of windows; nothing is changed then.
    pub fn merge(&mut self, other: &Self) -> Result<(), WindowsError> {
        if self.shape != other.shape {
            let (ours, theirs) = (self.shape, other.shape);
            return Err(WindowsError::Shape {
                ours_us: ours.first_width_us,
                ours_max: ours.windows_max,
                theirs_us: theirs.first_width_us,
                theirs_max: theirs.windows_max,
            });
        }
        // ours must be at least as wide, so that each of theirs lies within one of ours
        while self.doublings < other.doublings {
            self.double();
        }
        for (start_us, window) in other.iter() {
            if !window.is_empty() {
                self.window_at(start_us).merge(window);
            }
        }
        Ok(())
    }

    /// Width now in microseconds.
    #[must_use]
    pub fn width_us(&self) -> u64 {
        self.shape.first_width_us << self.doublings
    }

    /// How often the width was doubled because the windows were full.
    #[must_use]
    pub fn doublings(&self) -> u32 {
        self.doublings
    }

    /// Start offset and window, from offset 0 to the last one that holds something; empty ones in between
    /// are there too, because a gap is a finding. The last window may be cut short by the end of the run.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Window<K>)> + '_ {
        let width_us = self.width_us();
        self.rows.iter().zip(0_u64..).map(move |(window, index)| (index * width_us, window))
    }

    fn window_at(&mut self, offset_us: u64) -> &mut Window<K> {
        // ends before the width overflows: from 2^63 µs on, every offset is in one of two windows
        while offset_us / self.width_us() >= self.shape.windows_max as u64 {
            self.double();
        }
        let index =
            usize::try_from(offset_us / self.width_us()).expect("an index is below the allowed number");
        if self.rows.len() <= index {
            self.rows.iter_mut().for_each(|window| window.latency.close());
            self.rows.resize_with(index + 1, Window::default);
        }
        &mut self.rows[index]
    }

    fn double(&mut self) {
        let pairs = self.rows.len().div_ceil(2);
        for index in 0..pairs {
            let mut left = std::mem::take(&mut self.rows[2 * index]);
            if let Some(right) = self.rows.get(2 * index + 1) {
                left.merge(right);
            }
            self.rows[index] = left;
        }
        self.rows.truncate(pairs);
        self.doublings += 1;
    }
}

/// Windows as JSON, version 1. Empty windows are left out.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "K: Deserialize<'de>"))]
pub struct WindowsForm<K> {
    /// Version of this form: 1.
    pub version: u32,
    /// Width asked for in microseconds.
    pub first_width_us: u64,
    /// Most windows allowed.
    pub windows_max: usize,
    /// Width of these windows in microseconds: the first one doubled `doublings` times.
    pub width_us: u64,
    /// How often neighbours were merged because the windows were full.
    pub doublings: u32,
    /// Ascending by start.
    #[serde(deserialize_with = "bounded::list::<_, _, WINDOWS_MAX>")]
    pub windows: Vec<WindowForm<K>>,
}

/// One window as JSON.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(bound(deserialize = "K: Deserialize<'de>"))]
pub struct WindowForm<K> {
    /// Start in microseconds after the start of the run.
    pub start_us: u64,
    /// Events by class, ascending by class.
    #[serde(deserialize_with = "bounded::list::<_, _, CLASSES_MAX>")]
    pub counts: Vec<ClassCount<K>>,
    /// Latencies.
    pub latency: PackedHistogram,
}

impl<K: Ord + Clone> From<&Windows<K>> for WindowsForm<K> {
    fn from(windows: &Windows<K>) -> Self {
        let held = windows.iter().filter(|(_, window)| !window.is_empty());
        let form = |(start_us, window): (u64, &Window<K>)| WindowForm {
            start_us,
            counts: window.counts.clone(),
            latency: PackedHistogram::from(&*window.latency()),
        };
        Self {
            version: WINDOWS_VERSION,
            first_width_us: windows.shape.first_width_us,
            windows_max: windows.shape.windows_max,
            width_us: windows.width_us(),
            doublings: windows.doublings,
            windows: held.map(form).collect(),
        }
    }
}

impl<K: Ord + Clone> TryFrom<WindowsForm<K>> for Windows<K> {
    type Error = WindowsError;

    fn try_from(form: WindowsForm<K>) -> Result<Self, Self::Error> {
        if form.version != WINDOWS_VERSION {
            return Err(WindowsError::Version(form.version));
        }
        let mut windows = Self::new(form.first_width_us, form.windows_max)?;
        let WindowsForm { width_us, first_width_us, doublings, .. } = form;
        // multiplied, not shifted: a shift would lose high bits unseen
        let expected = 1_u64.checked_shl(doublings).and_then(|times| first_width_us.checked_mul(times));
        if expected != Some(width_us) {
            return Err(WindowsError::Doublings { width_us, first_width_us, doublings });
        }
        windows.doublings = doublings;
        let mut before = None;
        for (index, held) in form.windows.into_iter().enumerate() {
            let start_us = held.start_us;
            let past_the_end = start_us / width_us >= windows.shape.windows_max as u64;
            if start_us % width_us != 0 || past_the_end || before >= Some(start_us) {
                return Err(WindowsError::Start { index, start_us });
            }
            before = Some(start_us);
            let ascending = held.counts.is_sorted_by(|left, right| left.class < right.class);
            let counted = held.counts.iter().all(|entry| (1..=COUNT_MAX).contains(&entry.count));
            if !ascending || !counted || held.counts.is_empty() || held.counts.len() > CLASSES_MAX {
                return Err(WindowsError::Classes { index });
            }
            let latency = Latency::Closed { packed: held.latency, late: Vec::new() };
            *windows.window_at(start_us) = Window { counts: held.counts, latency };
        }
        Ok(windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(windows: &Windows<&'static str>) -> Vec<(u64, u64)> {
        windows.iter().map(|(start_us, window)| (start_us, window.total())).collect()
    }

    #[test]
    fn events_fall_into_their_window() {
        let mut windows = Windows::new(10, 4).unwrap();
        for offset_us in [0, 9, 10, 35, 39] {
            windows.record(offset_us, &"success", Some(offset_us));
        }
        windows.record(12, &"failure", None);
        assert_eq!(starts(&windows), [(0, 2), (10, 2), (20, 0), (30, 2)]);
        let (_, second) = windows.iter().nth(1).unwrap();
        assert_eq!((second.count(&"success"), second.count(&"failure"), second.count(&"other")), (1, 1, 0));
        assert_eq!(second.latency().count(), 1);
        assert_eq!((windows.width_us(), windows.doublings()), (10, 0));
    }

    #[test]
    fn full_windows_double_and_lose_nothing() {
        let mut windows = Windows::new(10, 4).unwrap();
        for offset_us in (0..45).step_by(5) {
            windows.record(offset_us, &"success", Some(1));
        }
        assert_eq!((windows.width_us(), windows.doublings()), (20, 1));
        assert_eq!(starts(&windows), [(0, 4), (20, 4), (40, 1)]);
        windows.record(u64::MAX, &"success", None);
        assert!(windows.iter().count() <= 4);
        assert_eq!(windows.iter().map(|(_, window)| window.total()).sum::<u64>(), 10);
        assert_eq!(windows.iter().map(|(_, window)| window.latency().count()).sum::<u64>(), 9);
    }

    #[test]
    fn a_closed_window_takes_what_comes_late_and_stays_small() {
        let mut windows = Windows::new(10, 4).unwrap();
        windows.record(1, &"success", Some(5));
        windows.record(15, &"success", Some(6));
        (0..1_000).for_each(|late_us| windows.record(2, &"success", Some(late_us)));
        let (_, first) = windows.iter().next().unwrap();
        assert_eq!(*first.latency(), std::iter::once(5).chain(0..1_000).collect());
        assert!(matches!(&first.latency, Latency::Closed { late, .. } if late.len() <= LATE_MAX));
        let (_, newest) = windows.iter().last().unwrap();
        assert!(matches!(&newest.latency, Latency::Open(_)));
    }

    #[test]
    fn the_widest_windows_hold_any_offset() {
        for width_us in [1, 3, WIDTH_MAX_US] {
            let mut windows = Windows::new(width_us, 2).unwrap();
            windows.record(u64::MAX, &"success", None);
            windows.record(0, &"success", None);
            assert_eq!(windows.iter().map(|(_, window)| window.total()).sum::<u64>(), 2);
        }
    }

    #[test]
    fn shapes_are_checked() {
        assert_eq!(Windows::<u8>::new(0, 4).unwrap_err(), WindowsError::Width(0));
        assert!(Windows::<u8>::new(WIDTH_MAX_US + 1, 4).is_err());
        assert_eq!(Windows::<u8>::new(1, 1).unwrap_err(), WindowsError::Number(1));
        assert!(Windows::<u8>::new(1, WINDOWS_MAX + 1).is_err());
        let mut ours = Windows::<u8>::new(10, 4).unwrap();
        let theirs = Windows::<u8>::new(20, 4).unwrap();
        assert!(matches!(ours.merge(&theirs), Err(WindowsError::Shape { ours_us: 10, theirs_us: 20, .. })));
    }

    fn sample() -> Windows<String> {
        let mut windows = Windows::new(10, 4).unwrap();
        windows.record(3, &"success".to_owned(), Some(7));
        windows.record(55, &"failure".to_owned(), None);
        windows
    }

    #[test]
    fn written_form_round_trips() {
        let windows = sample();
        let json = serde_json::to_string(&WindowsForm::from(&windows)).unwrap();
        assert!(json.starts_with(
            r#"{"version":1,"first_width_us":10,"windows_max":4,"width_us":20,"doublings":1,"windows":[{"start_us":0,"#
        ));
        let form: WindowsForm<String> = serde_json::from_str(&json).unwrap();
        assert_eq!(Windows::try_from(form), Ok(windows));
        let empty = Windows::<String>::new(5, 9).unwrap();
        assert_eq!(Windows::try_from(WindowsForm::from(&empty)), Ok(empty));
    }

    #[test]
    fn hostile_forms_are_refused() {
        let good = WindowsForm::from(&sample());
        assert!(Windows::try_from(good.clone()).is_ok());
        type Spoil = fn(&mut WindowsForm<String>);
        let spoils: [Spoil; 14] = [
            |form| form.version = 2,
            |form| form.first_width_us = 0,
            |form| form.windows_max = usize::MAX,
            |form| form.width_us = 10,
            |form| form.width_us = 0,
            |form| form.doublings = u32::MAX,
            |form| form.doublings = 62,
            |form| form.windows[0].start_us = 1,
            |form| form.windows[1].start_us = 80,
            |form| form.windows.swap(0, 1),
            |form| form.windows[0].counts[0].count = 0,
            |form| form.windows[0].counts[0].count = COUNT_MAX + 1,
            |form| form.windows[0].counts.clear(),
            |form| {
                let twice = form.windows[0].counts[0].clone();
                form.windows[0].counts.push(twice);
            },
        ];
        for (index, spoil) in spoils.into_iter().enumerate() {
            let mut form = good.clone();
            spoil(&mut form);
            let refused = Windows::try_from(form);
            assert!(refused.is_err(), "case {index}: {refused:?}");
        }
    }

    #[test]
    fn lists_are_cut_while_they_are_read() {
        let many = vec![r#"{"class":"a","count":1}"#; CLASSES_MAX + 1].join(",");
        let latency = serde_json::to_string(&Histogram::new()).unwrap();
        let json = format!(r#"{{"start_us":0,"counts":[{many}],"latency":{latency}}}"#);
        let refused = serde_json::from_str::<WindowForm<String>>(&json).unwrap_err().to_string();
        assert!(refused.contains("more than 256"), "{refused}");
    }
}
