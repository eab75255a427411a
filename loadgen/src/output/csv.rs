//! `report-<ts>.csv`: a row a stage, RFC 4180, units in the column names. What has no value is an empty field.

use super::show::PERCENTILES;
use crate::result::{Figure, Metric, RunResult, StageResult, Unit};

/// The whole file, heads included.
#[must_use]
pub fn csv(result: &RunResult) -> String {
    let mut out = line(&heads());
    for stage in &result.stages {
        out.push_str(&line(&fields(result, stage)));
    }
    out
}

/// Column names in order; `docs/reports.md` is held against them.
#[must_use]
pub fn heads() -> Vec<String> {
    let fixed = [
        "stamp",
        "profile",
        "stage",
        "stage_name",
        "load",
        "level",
        "started_us",
        "ended_us",
        "span_us",
        "planned",
        "sent",
        "ok",
        "failed",
        "cancelled",
        "dropped",
        "not_offered",
        "in_flight_max",
        "passed",
        "stopped",
        "certificates_unchecked",
        "core_wait_us",
    ];
    let mut heads: Vec<String> = fixed.map(str::to_owned).to_vec();
    heads.extend(Figure::ALL.iter().map(|figure| {
        let row = figure.definition();
        format!("{}{}", row.name, suffix(row.unit, row.name))
    }));
    for metric in Metric::ALL {
        let name = metric.name();
        heads.extend(PERCENTILES.iter().map(|(percentile, _)| format!("{name}_{percentile}_us")));
        heads.push(format!("{name}_max_us"));
        heads.push(format!("{name}_n"));
    }
    heads
}

fn suffix(unit: Unit, name: &str) -> &'static str {
    match unit {
        Unit::Share if !name.ends_with("_rate") => "_share",
        Unit::Bytes => "_bytes",
        _ => "",
    }
}

fn fields(result: &RunResult, stage: &StageResult) -> Vec<String> {
    use evidence::record::ClientClass as C;
    let counts = &stage.total.counts;
    let whole = |value: u64| value.to_string();
    let mut fields = vec![
        text(&result.run.stamp),
        text(&result.run.name),
        whole(stage.index as u64 + 1),
        stage.name.as_deref().map(text).unwrap_or_default(),
        text(&stage.load.words()),
        stage.load.level().map(number).unwrap_or_default(),
        whole(stage.started_us),
        whole(stage.ended_us),
        whole(stage.total.span_us),
        whole(counts.planned),
        whole(counts.sent),
        whole(counts.ok()),
        whole(counts.failed()),
        whole(counts.class(C::Cancelled)),
        whole(counts.class(C::Dropped)),
        whole(counts.class(C::NotOffered)),
        whole(stage.in_flight_max),
        stage.passed.map(|passed| passed.to_string()).unwrap_or_default(),
        stage.stopped.as_deref().map(text).unwrap_or_default(),
        result.wires.insecure.to_string(),
        result.health.core_wait_us.map(whole).unwrap_or_default(),
    ];
    fields
        .extend(Figure::ALL.iter().map(|figure| stage.total.value(*figure).map(number).unwrap_or_default()));
    for metric in Metric::ALL {
        let histogram = stage.total.distributions.get(*metric);
        let us = |value: Option<u64>| value.map(whole).unwrap_or_default();
        fields.extend(PERCENTILES.iter().map(|(_, percentile)| us(histogram.percentile_us(*percentile))));
        fields.push(us(histogram.max_us()));
        fields.push(whole(histogram.count()));
    }
    fields
}

fn number(value: f64) -> String {
    if value.is_finite() { report::units::trimmed(value, 6) } else { String::new() }
}

/// Foreign text: a spreadsheet must not take it for a formula.
fn text(value: &str) -> String {
    match value.chars().next() {
        Some('=' | '+' | '-' | '@' | '\t' | '\r') => format!("'{value}"),
        _ => value.to_owned(),
    }
}

fn line(fields: &[String]) -> String {
    let quoted = |field: &String| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field.clone()
        }
    };
    format!("{}\r\n", fields.iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_one_field_and_no_formula() {
        assert_eq!(line(&[text("=1+1"), text("a,\"b\"\nc"), text("x")]), "'=1+1,\"a,\"\"b\"\"\nc\",x\r\n");
    }
}
