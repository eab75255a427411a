//! Plots as HTML with inline SVG. Lines and bars lie in an SVG that stretches with the page; all text is HTML beside
//! it, so that labels keep their size on a phone. The values under the pointer are read from the same numbers.

pub mod axis;

use std::fmt::Write as _;

use crate::html::escape;
use axis::Axis;

/// Side of the square in which places are drawn; it is stretched to the size of the pane.
const SIDE: f64 = 1_000.0;
/// A bar is never thinner than this, so that a single event can be seen.
const BAR_MIN: f64 = 1.5;

/// A colour by its meaning; the style sheet has one value each for light and dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// The lowest of several percentiles.
    Low,
    /// The middle one.
    Mid,
    /// The high one.
    High,
    /// The highest one.
    Top,
    /// What went well.
    Good,
    /// What failed.
    Bad,
    /// What is in doubt or was left out.
    Doubt,
    /// Neither.
    Quiet,
    /// One of several kinds without an order, from 0.
    Kind(usize),
}

/// How many kinds have a colour of their own.
pub const KINDS: usize = 5;

impl Tone {
    /// The class in the style sheet.
    #[must_use]
    pub fn class(self) -> String {
        let word = match self {
            Self::Low => "low",
            Self::Mid => "mid",
            Self::High => "high",
            Self::Top => "top",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Doubt => "doubt",
            Self::Quiet => "quiet",
            Self::Kind(at) => return format!("kind{}", at % KINDS),
        };
        word.to_owned()
    }
}

/// A line over time or load. A place without a value interrupts it: nothing is drawn where nothing was measured.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Colour.
    pub tone: Tone,
    /// One value for each place of the chart.
    pub values: Vec<Option<f64>>,
    /// A dot at each value.
    pub dots: bool,
    /// Neighbours are joined; points of a scatter are not.
    pub joined: bool,
}

/// One colour of stacked bars.
#[derive(Clone, Debug)]
pub struct Stack {
    /// Name in the legend.
    pub name: String,
    /// Colour.
    pub tone: Tone,
    /// One value for each place of the chart.
    pub values: Vec<f64>,
}

/// A vertical line with a word at its top.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Where on the x axis.
    pub at: f64,
    /// The word.
    pub text: String,
}

/// One plot. All lines and stacks have one value for each place of `at`.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// Whose values, in which unit, measured from when.
    pub subtitle: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Places on the x axis: where lines have their points, and where each bar begins and ends.
    pub at: Vec<Place>,
    /// Lines, drawn over the bars.
    pub lines: Vec<Line>,
    /// Stacked bars, the first at the bottom.
    pub stacks: Vec<Stack>,
    /// Marks.
    pub marks: Vec<Mark>,
}

/// One place on the x axis.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where the point lies.
    pub x: f64,
    /// From where to where a bar reaches.
    pub bar: (f64, f64),
    /// What the place is called when it is pointed at.
    pub name: String,
}

impl Chart {
    /// The plot as a `figure`; a sentence instead of a pane when there is no value at all.
    #[must_use]
    pub fn html(&self) -> String {
        let mut out = format!(
            "<figure class=\"chart\"><figcaption><h3>{}</h3><p>{}</p></figcaption>\n",
            escape(&self.title),
            escape(&self.subtitle)
        );
        if self.is_empty() {
            out.push_str("<p class=\"nothing\">Nothing was measured here.</p></figure>\n");
            return out;
        }
        let places: Vec<String> = self.at.iter().map(|at| format!("{:.4}", self.x.place(at.x))).collect();
        let names: Vec<String> = self.at.iter().map(|at| escape(&at.name)).collect();
        let _ = write!(
            out,
            "<div class=\"plot\" data-places=\"{}\" data-names=\"{}\"><div class=\"ys\">{}</div>\
             <div class=\"pane\">{}{}<i class=\"rule\"></i></div><div class=\"xs\">{}</div></div>\n\
             <p class=\"xtitle\"><output></output>{}</p>{}</figure>\n",
            places.join(" "),
            names.join("|"),
            self.labels(&self.y, "bottom"),
            self.svg(),
            self.mark_words(),
            self.labels(&self.x, "left"),
            escape(&self.x.title),
            self.legend(),
        );
        out
    }

    fn is_empty(&self) -> bool {
        let lines = self.lines.iter().flat_map(|line| &line.values).any(Option::is_some);
        let bars = self.stacks.iter().flat_map(|stack| &stack.values).any(|value| *value > 0.0);
        !lines && !bars
    }

    fn labels(&self, axis: &Axis, side: &str) -> String {
        axis.ticks()
            .map(|(place, text)| {
                format!("<span style=\"{side}:{:.2}%\">{}</span>", place * 100.0, escape(&text))
            })
            .collect()
    }

    fn svg(&self) -> String {
        let mut out = format!(
            "<svg viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title)
        );
        for (place, _) in self.y.ticks() {
            let y = SIDE - place * SIDE;
            let _ = write!(out, "<path class=\"grid\" d=\"M0 {y:.1}H{SIDE}\"/>");
        }
        for mark in &self.marks {
            let _ = write!(out, "<path class=\"mark\" d=\"M{:.1} 0V{SIDE}\"/>", self.x.place(mark.at) * SIDE);
        }
        self.draw_stacks(&mut out);
        self.lines.iter().for_each(|line| self.draw_line(&mut out, line));
        out.push_str("</svg>");
        out
    }

    fn draw_stacks(&self, out: &mut String) {
        let mut below = vec![0.0; self.at.len()];
        for stack in &self.stacks {
            let mut path = String::new();
            for ((at, base), value) in self.at.iter().zip(&mut below).zip(&stack.values) {
                // What is not finite was not measured.
                if *value <= 0.0 || !value.is_finite() {
                    continue;
                }
                let (left, right) = (self.x.place(at.bar.0) * SIDE, self.x.place(at.bar.1) * SIDE);
                let right = right.max(left + BAR_MIN);
                let bottom = SIDE - self.y.place(*base) * SIDE;
                *base += value;
                let top = SIDE - self.y.place(*base) * SIDE;
                let _ = write!(path, "M{left:.1} {bottom:.1}V{top:.1}H{right:.1}V{bottom:.1}Z");
            }
            if !path.is_empty() {
                let _ = write!(out, "<path class=\"bar {}\" d=\"{path}\"/>", stack.tone.class());
            }
        }
    }

    fn draw_line(&self, out: &mut String, line: &Line) {
        let (mut path, mut dots, mut pen_down, mut alone) = (String::new(), String::new(), false, false);
        let mut last = (0.0, 0.0);
        let dot = |(x, y): (f64, f64)| format!("M{x:.1} {y:.1}h0");
        for (at, value) in self.at.iter().zip(&line.values) {
            let Some(value) = value.filter(|value| value.is_finite()) else {
                if alone {
                    dots.push_str(&dot(last));
                }
                (pen_down, alone) = (false, false);
                continue;
            };
            last = (self.x.place(at.x) * SIDE, SIDE - self.y.place(value) * SIDE);
            let _ = write!(path, "{}{:.1} {:.1}", if pen_down { "L" } else { "M" }, last.0, last.1);
            if line.dots {
                dots.push_str(&dot(last));
            }
            (pen_down, alone) = (true, !pen_down);
        }
        if alone {
            dots.push_str(&dot(last));
        }
        let class = line.tone.class();
        if line.joined {
            let _ = write!(out, "<path class=\"line {class}\" d=\"{path}\"/>");
        }
        if !dots.is_empty() {
            let _ = write!(out, "<path class=\"dot {class}\" d=\"{dots}\"/>");
        }
    }

    fn mark_words(&self) -> String {
        let words = self.marks.iter().filter(|mark| !mark.text.is_empty()).map(|mark| {
            let place = self.x.place(mark.at) * 100.0;
            let side = if place > 75.0 { " end" } else { "" };
            format!("<b class=\"word{side}\" style=\"left:{place:.2}%\">{}</b>", escape(&mark.text))
        });
        words.collect()
    }

    fn legend(&self) -> String {
        let entry = |name: &str, tone: Tone, values: Vec<String>| {
            format!(
                "<li class=\"{}\" data-values=\"{}\"><i></i>{}<output></output></li>",
                tone.class(),
                escape(&values.join("|")),
                escape(name)
            )
        };
        let text =
            |value: Option<f64>| value.map_or_else(|| crate::units::NONE.to_owned(), |v| self.y.text(v));
        // The highest line and the topmost stack come first, as they lie in the picture.
        let lines =
            self.lines.iter().rev().map(|line| {
                entry(&line.name, line.tone, line.values.iter().map(|value| text(*value)).collect())
            });
        let stacks = self.stacks.iter().rev().map(|stack| {
            entry(&stack.name, stack.tone, stack.values.iter().map(|value| text(Some(*value))).collect())
        });
        format!("<ul class=\"legend\">{}</ul>", lines.chain(stacks).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units;

    fn chart(values: Vec<Option<f64>>, stack: Vec<f64>) -> Chart {
        let at = (0..values.len().max(stack.len()))
            .map(|k| Place { x: k as f64, bar: (k as f64, k as f64 + 1.0), name: format!("{k} s") })
            .collect();
        Chart {
            title: "a<b".to_owned(),
            subtitle: String::new(),
            x: Axis::until("time", 4.0, |v| format!("{v} s")),
            y: Axis::from_zero("latency", 10.0, |v| units::span(v as u64)),
            at,
            lines: vec![Line { name: "p50".to_owned(), tone: Tone::Low, values, dots: false, joined: true }],
            stacks: vec![Stack { name: "ok".to_owned(), tone: Tone::Good, values: stack }],
            marks: vec![Mark { at: 2.0, text: "kill <host>".to_owned() }],
        }
    }

    #[test]
    fn a_gap_interrupts_the_line_and_a_lone_value_is_a_dot() {
        let html = chart(vec![Some(1.0), Some(2.0), None, Some(3.0)], vec![]).html();
        assert!(html.contains("d=\"M0.0 900.0L250.0 800.0M750.0 700.0\""), "{html}");
        assert!(html.contains("<path class=\"dot low\" d=\"M750.0 700.0h0\"/>"), "{html}");
    }

    #[test]
    fn stacks_stand_on_each_other_and_nothing_is_no_bar() {
        let mut chart = chart(vec![], vec![4.0, 0.0]);
        chart.stacks.push(Stack { name: "bad".to_owned(), tone: Tone::Bad, values: vec![2.0, 1.0] });
        let html = chart.html();
        assert!(html.contains("class=\"bar good\" d=\"M0.0 1000.0V600.0H250.0V1000.0Z\""), "{html}");
        assert!(
            html.contains("class=\"bar bad\" d=\"M0.0 600.0V400.0H250.0V600.0ZM250.0 1000.0V900.0"),
            "{html}"
        );
    }

    #[test]
    fn nothing_is_said_in_words_and_no_number_is_broken() {
        let html = chart(vec![None, None], vec![0.0]).html();
        assert!(html.contains("Nothing was measured here.") && !html.contains("<svg"));
        let html = chart(vec![Some(f64::NAN), Some(f64::INFINITY), Some(1.0)], vec![f64::NAN, 1.0]).html();
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
    }

    #[test]
    fn foreign_words_are_text() {
        let html = chart(vec![Some(1.0)], vec![]).html();
        assert!(html.contains("a&lt;b") && html.contains("kill &lt;host&gt;") && !html.contains("<host>"));
    }
}
