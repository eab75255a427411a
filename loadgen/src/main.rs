//! Program `loadgen`: a thin shell over the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use loadgen::output::compare::{self, CompareFlags};
use loadgen::output::merge::{self, MergeFlags};
use loadgen::result::{Definition, Figure, Metric};
use loadgen::run::RunFlags;
use loadgen::standalone::Flags;

/// Sends chat requests to an LLM gateway and records each one.
///
/// `run` and `search` take a profile. With --job it runs the plan of a runner, which commands it over standard input.
/// With plain flags it runs one closed loop. A client key comes in the environment variable PROOFLOAD_CLIENT_KEY (8
/// characters or more); a
/// proxy is used only where --proxy or the profile names one, proxy variables are ignored.
#[derive(Debug, Parser)]
#[command(version = scenario::build::BUILD_ID, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Job file of a runner; no other flag goes with it.
    #[arg(long, value_name = "FILE", exclusive = true)]
    job: Option<PathBuf>,
    #[command(flatten)]
    flags: Option<Flags>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a load profile.
    Run(RunFlags),
    /// Finds the highest concurrency or rate at which the thresholds of a profile hold.
    Search(RunFlags),
    /// Prints the table of all metrics.
    Metrics,
    /// Compares runs stage by stage; sends no load. Exit code 6 on a regression.
    Compare(CompareFlags),
    /// Makes one result of the shards of a run.
    Merge(MergeFlags),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match (cli.command, cli.job, cli.flags) {
        (Some(Command::Run(flags)), ..) => ExitCode::from(loadgen::run::run(&flags, false)),
        (Some(Command::Search(flags)), ..) => ExitCode::from(loadgen::run::run(&flags, true)),
        (Some(Command::Metrics), ..) => {
            metrics();
            ExitCode::SUCCESS
        }
        (Some(Command::Compare(flags)), ..) => ExitCode::from(compare::run(&flags)),
        (Some(Command::Merge(flags)), ..) => ExitCode::from(merge::run(&flags)),
        (None, Some(job), _) => ExitCode::from(loadgen::plan_mode::run(&job)),
        (None, None, Some(flags)) => ExitCode::from(loadgen::standalone::run(&flags)),
        (None, None, None) => {
            eprintln!(
                "loadgen: give run PROFILE, --job FILE, or --gateway-url, --model, --output and --requests or --duration"
            );
            ExitCode::from(evidence::exit::Outcome::Usage.code())
        }
    }
}

fn metrics() {
    let line = |row: Definition| {
        println!("{:<20} {:<3} {} ({})", row.name, row.unit.short(), row.meaning, row.population.words());
    };
    println!("with percentiles:");
    Metric::ALL.iter().for_each(|metric| line(metric.definition()));
    println!("one number:");
    Figure::ALL.iter().for_each(|figure| line(figure.definition()));
}
