//! Axes: where values lie, and which round numbers are written beside them.

/// Most labels on one axis; more would touch each other on a phone.
const TICKS_MAX: usize = 6;

/// Values on an axis lie between these: beyond, powers of ten leave what a float holds.
const RANGE: (f64, f64) = (1e-9, 1e18);

/// How values are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances are equal differences. Starts at 0 unless told otherwise.
    Linear,
    /// Equal distances are equal ratios; said so in the axis title.
    Log,
}

/// How tick values are written.
pub type Label = fn(f64) -> String;

/// One axis with its round numbers.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What is measured, with the unit, for example `latency`.
    pub title: String,
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    label: Label,
}

impl Axis {
    /// From 0 to the round number at or above `high`. Nothing to show gives an axis from 0 to 1.
    #[must_use]
    pub fn from_zero(title: &str, high: f64, label: Label) -> Self {
        let high = if high.is_finite() && high > 0.0 { high.clamp(RANGE.0, RANGE.1) } else { 1.0 };
        let step = step(high / (TICKS_MAX - 1) as f64);
        let steps = (high / step).ceil().max(1.0);
        let ticks = (0..=steps as usize).map(|at| at as f64 * step).collect();
        Self { title: title.to_owned(), scale: Scale::Linear, low: 0.0, high: steps * step, ticks, label }
    }

    /// Exactly from 0 to `high`, as an axis of time ends where the run ended.
    #[must_use]
    pub fn until(title: &str, high: f64, label: Label) -> Self {
        let mut axis = Self::from_zero(title, high, label);
        if (RANGE.0..=RANGE.1).contains(&high) {
            axis.high = high;
            axis.ticks.retain(|tick| *tick <= high);
        }
        axis
    }

    /// Logarithmic between two positive values. The ends are the values themselves.
    #[must_use]
    pub fn log(title: &str, low: f64, high: f64, label: Label) -> Self {
        let low = if low.is_finite() && low > 0.0 { low.clamp(RANGE.0, RANGE.1) } else { 1.0 };
        let high = if high.is_finite() && high > low { high.min(RANGE.1 * 10.0) } else { low * 10.0 };
        let ticks = log_ticks(low, high);
        Self { title: format!("{title} (log scale)"), scale: Scale::Log, low, high, ticks, label }
    }

    /// Place of a value, 0 at the low end and 1 at the high end; cut to the axis.
    #[must_use]
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Round numbers: place and text.
    pub fn ticks(&self) -> impl Iterator<Item = (f64, String)> + '_ {
        self.ticks.iter().map(|tick| (self.place(*tick), (self.label)(*tick)))
    }

    /// The text of a value, as ticks are written.
    #[must_use]
    pub fn text(&self, value: f64) -> String {
        (self.label)(value)
    }
}

/// The round step (1, 2 or 5 times a power of ten) at or above a raw one.
fn step(raw: f64) -> f64 {
    let power = 10_f64.powf(raw.log10().floor());
    let rest = raw / power;
    // A hair of tolerance keeps 2.0000000001 at 2.
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| rest <= nice * 1.000_001).unwrap_or(10.0);
    nice * power
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    for digits in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
        let ticks: Vec<f64> = (first..=last)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)))
            .filter(|tick| (low..=high).contains(tick))
            .collect();
        if ticks.len() <= TICKS_MAX + 1 {
            // A span below one step has no round number inside: its ends are named.
            return if ticks.len() < 2 { vec![low, high] } else { ticks };
        }
    }
    let decades = usize::try_from(last - first).unwrap_or(1).div_ceil(TICKS_MAX).max(1);
    (first..=last)
        .step_by(decades)
        .map(|power| 10_f64.powi(power))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(value: f64) -> String {
        format!("{value}")
    }

    #[test]
    fn ticks_are_round_and_few() {
        for (high, last, number) in
            [(1.0, 1.0, 6), (7.3, 8.0, 5), (97.0, 100.0, 6), (102_078.0, 150_000.0, 4), (0.004, 0.004, 5)]
        {
            let axis = Axis::from_zero("x", high, plain);
            assert!((axis.high - last).abs() < last * 1e-9, "{high}: {}", axis.high);
            assert_eq!(axis.ticks.len(), number, "{high}");
            assert!(axis.place(high) <= 1.0 && axis.place(0.0).abs() < 1e-12);
        }
    }

    #[test]
    fn hostile_numbers_give_an_axis_all_the_same() {
        for high in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE] {
            for axis in [Axis::from_zero("x", high, plain), Axis::log("x", high, high, plain)] {
                assert!(axis.ticks.len() < 20);
                for value in [0.0, -5.0, f64::NAN, f64::INFINITY, 1e300] {
                    assert!((0.0..=1.0).contains(&axis.place(value)), "{high} {value}");
                }
            }
        }
    }

    #[test]
    fn log_axes_say_so_and_keep_ratios() {
        let axis = Axis::log("latency", 100.0, 10_000.0, plain);
        assert!(axis.title.contains("log scale"));
        assert!((axis.place(1_000.0) - 0.5).abs() < 1e-9);
        assert!(axis.ticks().count() <= TICKS_MAX + 1);
        assert_eq!(
            Axis::log("x", 1.0, 1e30, plain).ticks.len().min(8),
            Axis::log("x", 1.0, 1e30, plain).ticks.len()
        );
    }
}
