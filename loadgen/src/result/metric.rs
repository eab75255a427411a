//! The one table of all metrics: name, unit, from where to where, of which requests, and what it means. Help texts,
//! legends, column heads and threshold names are made from it and nowhere else.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Microseconds.
    Microseconds,
    /// Events a second.
    PerSecond,
    /// Part of a whole, 0 to 1.
    Share,
    /// A plain number.
    Count,
    /// Bytes.
    Bytes,
    /// The currency of the price table.
    Money,
}

impl Unit {
    /// The short form behind a number.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::PerSecond => "/s",
            Self::Share | Self::Count | Self::Money => "",
            Self::Bytes => "B",
        }
    }
}

/// Which way is better; what `compare` calls a regression follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
    /// Neither.
    Neutral,
}

/// Whose values a metric holds. Success and failure never share one set (load-and-mocks 2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// Requests of class `ok`.
    Ok,
    /// Streamed requests of class `ok`.
    OkStream,
    /// Ended requests that are neither `ok` nor cancelled by plan.
    Failed,
    /// Requests that were written to a connection.
    Sent,
    /// Requests for which a connection was opened.
    Connected,
    /// Requests cut at their own cancel point.
    Cancelled,
    /// Turns of the event loop.
    Loop,
    /// All requests of the stage.
    All,
}

impl Population {
    /// In words, for legends.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Ok => "successful requests",
            Self::OkStream => "successful streams",
            Self::Failed => "failed requests",
            Self::Sent => "sent requests",
            Self::Connected => "requests that opened a connection",
            Self::Cancelled => "requests cut by plan",
            Self::Loop => "turns of the event loop",
            Self::All => "all requests",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Name in files, flags and thresholds.
    pub name: &'static str,
    /// Head of a column or axis.
    pub title: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Whose values.
    pub population: Population,
    /// Which way is better.
    pub better: Better,
    /// From where to where, and what it is good for.
    pub meaning: &'static str,
}

macro_rules! metrics {
    ($(#[$doc:meta] $variant:ident $name:literal $title:literal $population:ident $better:ident $meaning:literal;)*) => {
        /// A metric that has a distribution; its place in the table is its number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Metric { $(#[$doc] $variant,)* }

        impl Metric {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The row of the table.
            #[must_use]
            pub const fn definition(self) -> Definition {
                match self {
                    $(Self::$variant => Definition {
                        name: $name,
                        title: $title,
                        unit: Unit::Microseconds,
                        population: Population::$population,
                        better: Better::$better,
                        meaning: $meaning,
                    },)*
                }
            }
        }
    };
}

metrics! {
    /// Headline latency.
    Latency "latency" "latency" Ok Lower
        "planned instant to the last byte: waiting for a slot, for the generator and for a connection is charged";
    /// Raw service time.
    Service "service" "service time" Ok Lower
        "start of sending to the last byte, as tools without correction show it; hides what a stalled server delays";
    /// TTFT.
    Ttft "ttft" "time to first token" Ok Lower
        "planned instant to the first content or tool call with text; for JSON the first body byte";
    /// TTFT without waiting.
    TtftService "ttft_service" "time to first token (raw)" Ok Lower
        "request written to the first content; the waiting before the send is left out";
    /// First response byte.
    FirstByte "first_byte" "time to first byte" Ok Lower
        "request written to the first byte of the answer's body, JSON and SSE alike";
    /// Time to first reasoning.
    FirstReasoning "first_reasoning" "time to first reasoning" OkStream Lower
        "planned instant to the first reasoning text of a stream";
    /// Headers.
    Headers "headers" "time to headers" Ok Lower "request written to the end of the response headers";
    /// Between events.
    InterEvent "inter_event" "time between events" OkStream Lower
        "between two events with output of one stream; an event may hold several tokens, and events that came in one \
         read share an instant";
    /// Time per output token.
    Tpot "tpot" "time per output token" OkStream Lower
        "(last − first output) / (completion tokens − 1) of one stream, from the second token on";
    /// The specification's figure.
    TpotSpec "tpot_total" "(total − TTFT) / tokens" OkStream Lower
        "(latency − time to first token) / completion tokens: the figure of the specification, beside tpot";
    /// DNS.
    Dns "dns" "name resolution" Connected Lower
        "resolving the host of the target; 0 where the address was known, since names are resolved once by default";
    /// TCP connect.
    Connect "connect" "TCP connect" Connected Lower "start of the connection to its being established";
    /// TLS.
    Tls "tls" "TLS handshake" Connected Lower "established connection to the end of the TLS handshake";
    /// Proxy.
    Proxy "proxy" "tunnel by the proxy" Connected Lower
        "established connection to the proxy's word that the tunnel to the target stands; before the TLS handshake";
    /// Transfer.
    Transfer "transfer" "transfer" Ok Lower "first byte of the answer's body to its last one";
    /// Lateness.
    Lateness "lateness" "lateness" Sent Lower
        "planned instant to the start of sending, without waits that the target or the in-flight bound caused: the \
         generator's own error";
    /// Queueing.
    Queue "queue" "queueing" Sent Lower
        "planned instant to the release by the in-flight bound (policy delay); part of latency";
    /// Cancel latency.
    Cancel "cancel" "cancel latency" Cancelled Lower
        "cancel point reached to the connection closed by the client";
    /// Time to fail.
    Fail "fail" "time to fail" Failed Neutral "planned instant to the end of a request that failed";
}

impl Metric {
    /// Name in files and flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.definition().name
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no metric.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no metric with percentiles; `loadgen metrics` lists them")]
pub struct UnknownMetric(String);

impl FromStr for Metric {
    type Err = UnknownMetric;

    fn from_str(text: &str) -> Result<Self, UnknownMetric> {
        let found = Self::ALL.iter().find(|metric| metric.name() == text);
        found.copied().ok_or_else(|| UnknownMetric(text.to_owned()))
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Metric {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Metric".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = Self::ALL.iter().map(|metric| metric.name()).collect();
        json_schema!({ "type": "string", "enum": names, "description": "A metric with a distribution." })
    }
}

macro_rules! figures {
    ($(#[$doc:meta] $variant:ident $name:literal $title:literal $unit:ident $population:ident $better:ident $meaning:literal;)*) => {
        /// A figure that is one number; [`super::Figures::value`] computes each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Figure { $(#[$doc] $variant,)* }

        impl Figure {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The row of the table.
            #[must_use]
            pub const fn definition(self) -> Definition {
                match self {
                    $(Self::$variant => Definition {
                        name: $name,
                        title: $title,
                        unit: Unit::$unit,
                        population: Population::$population,
                        better: Better::$better,
                        meaning: $meaning,
                    },)*
                }
            }
        }
    };
}

figures! {
    /// Ended requests a second.
    Rps "rps" "requests/s" PerSecond All Higher "ended requests over the steady span";
    /// Successes a second.
    OkRps "ok_rps" "successes/s" PerSecond Ok Higher "successful requests over the steady span";
    /// Planned requests a second.
    PlannedRps "planned_rps" "planned/s" PerSecond All Neutral "planned requests over the steady span";
    /// Sent over planned.
    Achieved "achieved" "sent / planned" Share All Higher "sent requests over planned ones; below 1 the load was not offered";
    /// Failures over ended.
    ErrorRate "error_rate" "error rate" Share All Lower
        "failed requests over ended ones; requests cut by plan and by the end of the run are in neither";
    /// Goodput.
    Goodput "goodput" "goodput" Share Sent Higher "sent requests that succeeded within every limit of the SLO, over sent ones";
    /// Good requests a second.
    GoodputRps "goodput_rps" "goodput/s" PerSecond Sent Higher "requests that succeeded within every limit of the SLO, over the steady span";
    /// Tokens a second.
    OutputTokensPerSecond "output_tokens_per_s" "output tokens/s" PerSecond Ok Higher
        "completion tokens of successful requests over the steady span, by the server's usage where it was given";
    /// Prompt tokens.
    PromptTokens "prompt_tokens" "prompt tokens" Count Ok Neutral "prompt tokens by the server's usage";
    /// Completion tokens of usage.
    CompletionTokens "completion_tokens" "completion tokens" Count Ok Neutral "completion tokens by the server's usage";
    /// Own count.
    CountedTokens "counted_tokens" "events with output" Count Ok Neutral
        "events with output counted by the client where the server gave no usage; never added to completion tokens";
    /// Tokens an event.
    TokensPerEvent "tokens_per_event" "tokens/event" Count OkStream Neutral
        "completion tokens by usage over events with output, of streams that had both";
    /// Cost.
    Cost "cost" "cost" Money Ok Lower "tokens by the server's usage, times the price table of the profile";
    /// Bytes in.
    BytesIn "bytes_in" "bytes in" Bytes All Neutral "bytes of answers' bodies";
    /// Bytes out.
    BytesOut "bytes_out" "bytes out" Bytes All Neutral "bytes of requests' bodies";
    /// Reuse.
    RequestsPerConnection "requests_per_connection" "requests/connection" Count Sent Neutral
        "sent requests over the connections that carried them, each counted once a stage";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_read_back() {
        let mut names = BTreeSet::new();
        for metric in Metric::ALL {
            assert!(names.insert(metric.name()), "{metric}");
            assert_eq!(metric.name().parse(), Ok(*metric));
            let text = serde_json::to_string(metric).unwrap();
            assert_eq!(serde_json::from_str::<Metric>(&text).unwrap(), *metric);
        }
        for figure in Figure::ALL {
            assert!(names.insert(figure.definition().name), "{figure:?}");
        }
        assert!("p95".parse::<Metric>().is_err());
    }

    #[test]
    fn the_number_of_a_metric_is_its_place() {
        for (place, metric) in Metric::ALL.iter().enumerate() {
            assert_eq!(*metric as usize, place);
        }
    }
}
