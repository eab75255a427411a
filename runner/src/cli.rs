//! The command line. Results go to standard output, progress and errors to standard error.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use evidence::exit::Outcome;

use crate::commands;
use crate::commands::catalogue::Layer;
use crate::error::RunnerError;
use crate::input::{Overrides, Setting};
use crate::judge::Known;
use crate::life::prepare::Options;
use crate::stack::attach::AttachArgs;
use crate::stack::compose::ComposeArgs;
use crate::stack::real::HostsBy;
use crate::stack::{Choice, StackKind};
use crate::view::tell;

/// Exit codes, printed under `--help`.
const EXIT_CODES: &str = "Exit codes: 0 pass, 1 fail, 2 usage, 3 invalid, 4 unknown, 5 environment, 6 regression, \
                          70 internal, 130 interrupted.";

/// Runs one committed scenario against a Devshard and judges it by evidence.
#[derive(Debug, Parser)]
#[command(name = "runner", version = scenario::build::BUILD_ID, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scenario: start, faults, load, drain, collect, judge, write.
    Run(RunArgs),
    /// Check a scenario file; touches no network and starts nothing.
    Validate(FileArgs),
    /// Print what a run would do: every limit in force and where it comes from, nodes, rules, hashes.
    Plan(PlanArgs),
    /// Judge the stored evidence of a run again.
    Analyze(AnalyzeArgs),
    /// Replay one failure: first from evidence, then on a fresh stack.
    Repro(ReproArgs),
    /// List runs, newest first.
    List(ResultsArgs),
    /// Show one run.
    Show(ShowArgs),
    /// Compare a run with a baseline of the same plan and scenario; exit 6 when it is worse.
    Compare(CompareArgs),
    /// Look for leftovers of dead runs and remove them.
    Gc(GcArgs),
    /// Look at a Compose stack without starting it.
    #[command(subcommand)]
    Stack(StackCommand),
    /// Internal: removes the containers of a run whose runner is gone.
    #[command(name = "__reaper", hide = true)]
    Reaper {
        /// Lease file.
        lease: PathBuf,
    },
    /// Prove that assertions can fail: runs against planted defects. Needs a build that has them.
    Selftest(SelftestArgs),
    /// Internal: the process that ends everything when the runner is gone.
    #[command(name = "__guard", hide = true)]
    Guard {
        /// Private directory of the run.
        work: PathBuf,
    },
}

/// Commands about stacks.
#[derive(Debug, Subcommand)]
enum StackCommand {
    /// Print what `run --stack compose` would ask of the engine, step by step, with its hash.
    Plan(StackPlanArgs),
}

#[derive(Debug, Args)]
struct StackPlanArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    stack: StackArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Where results are.
#[derive(Clone, Debug, Args)]
pub struct ResultsArgs {
    /// Folder with run directories.
    #[arg(long, default_value = "results", env = "PROOFLOAD_RESULTS")]
    pub results: PathBuf,
}

/// A scenario file and what overrides it.
#[derive(Clone, Debug, Args)]
pub struct FileArgs {
    /// Scenario file, for example scenarios/ml-5xx.yaml.
    pub scenario: PathBuf,
    /// Folder with node profiles; by default `ml-profiles` beside the scenario's folder.
    #[arg(long)]
    pub profiles: Option<PathBuf>,
    /// Seed of every draw (or PROOFLOAD_SEED).
    #[arg(long)]
    pub seed: Option<String>,
    /// Length of the plan (or PROOFLOAD_REQUESTS).
    #[arg(long)]
    pub requests: Option<String>,
    /// Concurrency of every step (or PROOFLOAD_CONCURRENCY).
    #[arg(long)]
    pub concurrency: Option<String>,
    /// Total limit of a request, for example 30s, or `protocol` (or PROOFLOAD_TIMEOUT).
    #[arg(long)]
    pub timeout: Option<String>,
    /// Deadline of the passive drain, for example 60s, or `protocol` (or PROOFLOAD_DRAIN_TIMEOUT).
    #[arg(long)]
    pub drain_timeout: Option<String>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    results: ResultsArgs,
    #[command(flatten)]
    stack: StackArgs,
    /// Print no progress.
    #[arg(long)]
    quiet: bool,
    /// Switch a named rule off, for example ghost; may be repeated.
    #[arg(long = "no-rule", value_name = "NAME", value_parser = rule_name)]
    rules_off: Vec<String>,
    #[command(flatten)]
    known: KnownArgs,
    /// Write JUnit XML of assertions and limits to this file.
    #[arg(long, value_name = "PATH")]
    junit: Option<PathBuf>,
}

/// The name of a rule that exists.
fn rule_name(name: &str) -> Result<String, String> {
    verdict::rules::find(name).map(|rule| rule.name.to_owned())
}

/// Findings that are known and not yet repaired.
#[derive(Clone, Debug, Args)]
pub struct KnownArgs {
    /// File that lists known findings (docs/formats.md); what occurs, what is gone and what has expired is printed.
    #[arg(long = "known-findings", value_name = "FILE")]
    pub known_findings: Option<PathBuf>,
    /// End as if the known findings had not been there, when nothing else failed; the report still says that it did.
    #[arg(long)]
    pub accept_known: bool,
}

impl KnownArgs {
    fn read(&self) -> Result<Known, RunnerError> {
        Known::read(self.known_findings.as_deref(), self.accept_known)
    }
}

/// Arguments of `analyze`.
#[derive(Debug, Args)]
struct AnalyzeArgs {
    #[command(flatten)]
    run: RunRef,
    #[command(flatten)]
    known: KnownArgs,
}

/// Which programs run.
#[derive(Clone, Debug, Args)]
pub struct StackArgs {
    /// Folder with the programs; by default the folder of this one.
    #[arg(long, env = "PROOFLOAD_BIN_DIR")]
    pub bin_dir: Option<PathBuf>,
    /// What runs: `embedded` starts child processes on loopback, `compose` containers on a local engine, `attach`
    /// starts nothing and uses what runs at `--gateway` and `--host`.
    #[arg(long, value_enum, default_value_t = StackKind::Embedded)]
    pub stack: StackKind,
    /// Personality of the reference Devshard.
    #[arg(long, default_value = "intended", value_parser = ["intended", "july"])]
    pub personality: String,
    /// Folder with your own builds of devshardctl and devshardd, which then run under our mocks (embedded stack).
    #[arg(long, value_name = "DIR")]
    pub devshard_bin: Option<PathBuf>,
    /// What starts the hosts of that folder: `versiond`, each in a network namespace of its own, where the folder holds it
    /// and this machine makes them; `devshardd` alone elsewhere.
    #[arg(long, value_enum, default_value_t = HostsBy::Auto)]
    pub hosts_by: HostsBy,
    /// Planted defect; only in builds for the self-test.
    #[cfg(feature = "planted-defects")]
    #[arg(long, value_parser = crate::stack::embedded::DEFECTS.map(|(name, _)| name))]
    pub defect: Option<String>,
    /// Flags of the Compose stack.
    #[command(flatten)]
    pub compose: ComposeArgs,
    /// Where a running environment is.
    #[command(flatten)]
    pub attach: AttachArgs,
}

impl StackArgs {
    fn choice(&self) -> Choice {
        #[cfg(feature = "planted-defects")]
        let defect = self.defect.clone();
        #[cfg(not(feature = "planted-defects"))]
        let defect = None;
        Choice {
            stack: self.stack,
            personality: self.personality.clone(),
            defect,
            compose: self.compose.clone(),
            devshard_bin: self.devshard_bin.clone(),
            hosts_by: self.hosts_by,
            attach: self.attach.clone(),
        }
    }
}

#[derive(Debug, Args)]
struct PlanArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Print the plan's lines as JSON, one a line, instead of the overview.
    #[arg(long)]
    lines: bool,
}

/// A stored run.
#[derive(Clone, Debug, Args)]
pub struct RunRef {
    /// Run id, a unique part of it, `last`, or a path.
    pub run: String,
    /// Where it is.
    #[command(flatten)]
    pub results: ResultsArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    run: RunRef,
    /// How it is written.
    #[arg(long, value_enum, default_value_t = commands::list::Format::Text)]
    format: commands::list::Format,
}

#[derive(Debug, Args)]
struct ReproArgs {
    #[command(flatten)]
    run: RunRef,
    /// Request id, or `_run.<assertion>.<n>`.
    failure: String,
    /// Stop after judging the stored evidence again.
    #[arg(long)]
    analysis_only: bool,
    /// Send only the failed request instead of the whole plan.
    #[arg(long)]
    alone: bool,
    /// Replay this many times and give k of n with an interval.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
    #[command(flatten)]
    stack: StackArgs,
}

#[derive(Debug, Args)]
struct CompareArgs {
    /// Baseline: run id, a unique part of it, `last`, or a path.
    before: String,
    /// Run that is compared with it.
    after: String,
    /// Part by which times may grow and throughput may fall.
    #[arg(long, default_value_t = 0.2, value_parser = share)]
    tolerance: f64,
    #[command(flatten)]
    results: ResultsArgs,
}

/// A number from 0 to 10.
fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if (0.0..=10.0).contains(&number) { Ok(number) } else { Err("give a number from 0 to 10".to_owned()) }
}

#[derive(Debug, Args)]
struct GcArgs {
    /// Only say what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Engine to look at, as a Unix socket; by default the one that `docker` would use.
    #[arg(long, value_name = "SOCKET")]
    engine: Option<String>,
}

#[derive(Debug, Args)]
struct SelftestArgs {
    /// Catalogue of defects.
    #[arg(long, default_value = "selftest/defects.json")]
    catalogue: PathBuf,
    /// Folder with the programs that have planted defects; by default the folder of this one.
    #[arg(long, env = "PROOFLOAD_BIN_DIR")]
    bin_dir: Option<PathBuf>,
    /// Only this defect, or the defects of this assertion, for example A3.
    #[arg(long)]
    only: Option<String>,
    /// Only the first defect of each assertion.
    #[arg(long)]
    quick: bool,
    /// Layers: M plants defects in programs and scenarios, B disturbs runs from outside.
    #[arg(long = "layer", value_enum, value_delimiter = ',', default_values_t = [Layer::M])]
    layers: Vec<Layer>,
    /// Folder for the run directories.
    #[arg(long, default_value = "results/selftest")]
    results: PathBuf,
    /// Write defects against assertions to this file.
    #[arg(long)]
    matrix: Option<PathBuf>,
}

/// Parses the command line and carries it out.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; everything else is the usage code.
            drop(error.print());
            return if error.use_stderr() { exit(Outcome::Usage) } else { ExitCode::SUCCESS };
        }
    };
    if let Command::Guard { work } = &cli.command {
        return crate::guard::process::run(work);
    }
    match carry_out(cli.command) {
        Ok(outcome) => exit(outcome),
        Err(error) => {
            tell(&format!("{}: {error}", error.outcome()));
            if let RunnerError::Environment { log, .. } = &error {
                log.iter().for_each(|line| tell(&format!("  | {line}")));
            }
            exit(error.outcome())
        }
    }
}

fn exit(outcome: Outcome) -> ExitCode {
    ExitCode::from(outcome.code())
}

fn options(
    file: &FileArgs,
    results: &ResultsArgs,
    stack: &StackArgs,
    rules_off: Vec<String>,
) -> Result<Options, RunnerError> {
    Ok(Options {
        scenario: file.scenario.clone(),
        profiles: profiles(file),
        results: results.results.clone(),
        bin_dir: stack.bin_dir.clone(),
        overrides: overrides(file)?,
        choice: stack.choice(),
        rules_off,
        known: Known::default(),
    })
}

/// Defaults < file < environment < flag.
fn overrides(file: &FileArgs) -> Result<Overrides, RunnerError> {
    let mut overrides = Overrides::default();
    // What is no text becomes a text that no setting takes: it is refused, not passed over.
    let variable = |name: &str| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
    overrides.set_environment(variable).map_err(RunnerError::Usage)?;
    let flags = [
        (Setting::Seed, &file.seed),
        (Setting::Requests, &file.requests),
        (Setting::Concurrency, &file.concurrency),
        (Setting::Timeout, &file.timeout),
        (Setting::DrainTimeout, &file.drain_timeout),
    ];
    for (setting, given) in flags {
        if let Some(text) = given {
            overrides.set_flag(setting, text).map_err(RunnerError::Usage)?;
        }
    }
    Ok(overrides)
}

/// `scenarios/x.yaml` finds `ml-profiles/`; a file elsewhere finds a folder of that name beside it.
fn profiles(file: &FileArgs) -> PathBuf {
    if let Some(given) = &file.profiles {
        return given.clone();
    }
    let folder = file.scenario.parent().map_or_else(PathBuf::new, std::path::Path::to_path_buf);
    let beside = folder.join("ml-profiles");
    if beside.is_dir() { beside } else { folder.join("..").join("ml-profiles") }
}

fn carry_out(command: Command) -> Result<Outcome, RunnerError> {
    match command {
        Command::Run(args) => {
            let mut options = options(&args.file, &args.results, &args.stack, args.rules_off)?;
            options.known = args.known.read()?;
            commands::run::run(&options, args.quiet, args.junit.as_deref())
        }
        Command::Validate(file) => {
            commands::plan::validate(&file.scenario, &profiles(&file), &overrides(&file)?)
        }
        Command::Plan(args) => commands::plan::plan(
            &args.file.scenario,
            &profiles(&args.file),
            &overrides(&args.file)?,
            args.lines,
        ),
        Command::Analyze(args) => {
            commands::analyze::analyze(&args.run.results.results, &args.run.run, &args.known.read()?)
        }
        Command::Repro(args) => commands::repro::repro(&commands::repro::Request {
            results: args.run.results.results,
            run: args.run.run,
            failure: args.failure,
            analysis_only: args.analysis_only,
            alone: args.alone,
            times: args.times,
            bin_dir: args.stack.bin_dir,
            compose: args.stack.compose,
            devshard_bin: args.stack.devshard_bin,
            attach: args.stack.attach,
        }),
        Command::List(args) => commands::list::list(&args.results),
        Command::Show(args) => commands::list::show(&args.run.results.results, &args.run.run, args.format),
        Command::Compare(args) => {
            commands::compare::compare(&args.results.results, &args.before, &args.after, args.tolerance)
        }
        Command::Gc(args) => commands::gc::gc(args.dry_run, args.engine),
        Command::Stack(StackCommand::Plan(args)) => {
            let none = ResultsArgs { results: PathBuf::new() };
            let options = options(&args.file, &none, &args.stack, Vec::new())?;
            commands::stack::plan(&options, args.json)
        }
        Command::Reaper { lease } => commands::stack::reaper(&lease),
        Command::Selftest(args) => commands::selftest::selftest(&commands::selftest::Request {
            catalogue: args.catalogue,
            bin_dir: args.bin_dir,
            only: args.only,
            quick: args.quick,
            layers: args.layers,
            results: args.results,
            matrix: args.matrix,
        }),
        Command::Guard { .. } => Err(RunnerError::Internal("the guard is handled before".to_owned())),
    }
}
