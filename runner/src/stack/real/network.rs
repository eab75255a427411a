//! A network namespace for each host that runs under `versiond`, whose port is fixed (contract hosts 1.2).
//!
//! A namespace has no name: it is held by a process of the guard, whose input ends with the guard, and when the last
//! process in it has ended the kernel removes it with both ends of its link. So nothing of it can outlive a run, whoever
//! is killed. A link from each namespace ends at one address of this machine, where mocks and routers listen; there is no
//! other way out of it. `ip`, `unshare` and `nsenter` are called with argument lists.

use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Stdio;
use std::time::Duration;

use compose_engine::subnet::{Net, routes};
use evidence::event::EventKind;

use super::super::Context;
use crate::error::RunnerError;
use crate::guard::Spawn;

/// Range of the subnets: beside the one that Compose projects are given.
const RANGE: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 0);
/// Prefix length of a run's subnet, and how many the range holds.
const PREFIX: u8 = 24;
const SUBNETS: u32 = 256;
/// This machine's address in its subnet, and the one of the first host.
const OUR_OFFSET: u32 = 1;
const HOST_OFFSET: u32 = 10;
/// Hosts that a subnet has room for.
pub const HOSTS_MAX: u32 = 240;
/// The line that a holder gives back once it stands.
const STANDING: &str = "standing";
/// Time limit of a holder's first word and of one command.
const LIMIT: Duration = Duration::from_secs(10);
/// Name of the interface inside.
const INSIDE: &str = "eth0";

/// Why no namespace can be made here; `None` when one was made, with a link in it, and is gone again.
#[must_use]
pub fn not_here() -> Option<String> {
    let link = ["-n", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"];
    let tried = std::process::Command::new("unshare").args(link).stdin(Stdio::null()).output();
    let why = match tried {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().chars().take(200).collect(),
        Err(error) => format!("unshare: {error}"),
    };
    Some(format!("this machine makes no network namespaces ({why}); root, `ip` and `unshare` are needed"))
}

/// A subnet that this run alone uses. The lease is a bound abstract socket, which ends with the process.
#[derive(Debug)]
struct Subnet {
    base: u32,
    _lease: UnixListener,
}

impl Subnet {
    /// The first from `start` on that no route of this machine overlaps and no other run holds.
    fn lease(start: u32, busy: &[Net]) -> Result<Self, String> {
        for step in 0..SUBNETS {
            let index = (start % SUBNETS + step) % SUBNETS;
            let base = u32::from(RANGE) + (index << (32 - u32::from(PREFIX)));
            let net = Net { base, prefix: PREFIX };
            if busy.iter().any(|other| net.overlaps(*other)) {
                continue;
            }
            let name = format!("proofload-subnet-{net}");
            let address = SocketAddr::from_abstract_name(name).map_err(|error| error.to_string())?;
            // Taken: another run was faster.
            if let Ok(lease) = UnixListener::bind_addr(&address) {
                return Ok(Self { base, _lease: lease });
            }
        }
        Err(format!("every subnet of {RANGE}/16 is in use; end other runs, or give --hosts-by devshardd"))
    }

    fn at(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.base + offset)
    }
}

/// The network of one run.
#[derive(Debug)]
pub struct Network {
    subnet: Subnet,
    tag: String,
    hosts: u32,
}

/// A host's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The process that holds it.
    pub holder: u32,
    /// Address of the host in it.
    pub address: Ipv4Addr,
}

impl Network {
    /// Leases a subnet. Links are named after the run, whose directory ends in six characters of its own.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when there is none left.
    pub fn open(context: &Context<'_>) -> Result<Self, RunnerError> {
        let table = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
        let subnet = Subnet::lease(std::process::id(), &routes(&table)).map_err(RunnerError::environment)?;
        let run = context.dir.root().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tag = run.rsplit('-').next().unwrap_or_default().to_owned();
        Ok(Self { subnet, tag, hosts: 0 })
    }

    /// This machine's address that every host reaches; it exists with the first namespace.
    #[must_use]
    pub fn ours(&self) -> Ipv4Addr {
        self.subnet.at(OUR_OFFSET)
    }

    /// Makes the namespace of one more host and links it.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with what the command said.
    pub async fn add(&mut self, host: &str, context: &mut Context<'_>) -> Result<Namespace, RunnerError> {
        let link = format!("pl{}-{}", self.tag, self.hosts);
        let address = self.subnet.at(HOST_OFFSET + self.hosts);
        self.hosts += 1;
        let ours = self.ours();
        let text = format!("network of {host}: namespace {address}, linked by {link} to {ours}");
        context.dispatcher.log(EventKind::Note { text })?;
        let holder = hold(&format!("{host}-net"), context).await?;
        let namespace = Namespace { holder, address };
        for command in commands(&link, ours, &namespace) {
            let made = context.dispatcher.through(carry_out(&command)).await?;
            made.map_err(|why| {
                RunnerError::environment(format!(
                    "network of {host}: `{}`: {why}; --hosts-by devshardd needs no namespaces",
                    command.join(" ")
                ))
            })?;
        }
        Ok(namespace)
    }
}

impl Namespace {
    /// Program and arguments that start a program inside. The process stays the same one.
    #[must_use]
    pub fn inside(&self, words: &[&str]) -> Vec<String> {
        let holder = self.holder.to_string();
        let enter = ["nsenter", "-t", holder.as_str(), "-n"];
        enter.iter().chain(words).map(|word| (*word).to_owned()).collect()
    }
}

/// What makes the link, this side first.
fn commands(link: &str, ours: Ipv4Addr, namespace: &Namespace) -> Vec<Vec<String>> {
    let holder = namespace.holder.to_string();
    let (ours, theirs) = (ours.to_string(), namespace.address.to_string());
    let ip = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    vec![
        ip(&["ip", "link", "add", link, "type", "veth", "peer", "name", INSIDE, "netns", &holder]),
        ip(&["ip", "addr", "add", &ours, "peer", &theirs, "dev", link]),
        ip(&["ip", "link", "set", link, "up"]),
        namespace.inside(&["ip", "link", "set", "lo", "up"]),
        namespace.inside(&["ip", "addr", "add", &theirs, "peer", &ours, "dev", INSIDE]),
        namespace.inside(&["ip", "link", "set", INSIDE, "up"]),
    ]
}

async fn carry_out(command: &[String]) -> Result<(), String> {
    let (program, args) = command.split_first().ok_or("no command")?;
    let call =
        tokio::process::Command::new(program).args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(LIMIT, call).await {
        Err(_) => Err(format!("it did not end within {} s", LIMIT.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect()),
    }
}

/// Starts the holder of a namespace: it gives back what it reads, and ends when there is nothing more to read. Gives its
/// process id once it stands in its namespace.
async fn hold(service: &str, context: &mut Context<'_>) -> Result<u32, RunnerError> {
    let log = context.work.join(format!("{service}.log"));
    let spawn = Spawn {
        service: service.to_owned(),
        program: "unshare".into(),
        args: vec!["-n".to_owned(), "cat".to_owned()],
        env: std::collections::BTreeMap::new(),
        log: log.clone(),
        user: None,
        stdout_to_log: false,
    };
    super::super::launch::spawn(context, spawn).await?;
    context.guard.input(service, STANDING).await?;
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let state = context.dispatcher.services.entry(service.to_owned()).or_default();
        if state.output.iter().any(|line| line == STANDING) {
            return Ok(state.pid);
        }
        let why = match (&state.not_spawned, &state.ended) {
            (Some(error), _) => error.clone(),
            (None, Some(ended)) => {
                let words = std::fs::read_to_string(&log).unwrap_or_default();
                format!("{ended}: {}", words.trim())
            }
            (None, None) => match tokio::time::timeout_at(deadline, context.dispatcher.next()).await {
                Ok(taken) => {
                    taken?;
                    continue;
                }
                Err(_) => format!("it did not stand within {} s", LIMIT.as_secs()),
            },
        };
        let text = format!("{service}: {why}; --hosts-by devshardd needs no namespaces");
        return Err(RunnerError::environment(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_never_share_a_subnet_and_busy_ones_are_passed_over() {
        let busy = [Net::parse("10.214.7.0/24").unwrap()];
        // Far from where a run of another test begins.
        let one = Subnet::lease(7, &busy).unwrap();
        let two = Subnet::lease(7, &busy).unwrap();
        assert_ne!(one.base, two.base);
        assert!(u32::from(Ipv4Addr::new(10, 214, 8, 0)) <= one.base, "{one:?}");
        let base = one.base;
        drop(one);
        let again = Subnet::lease((base >> 8) & 255, &busy).unwrap();
        assert_eq!(again.base, base, "a lease ends with its socket");
        let all = [Net::parse("10.0.0.0/8").unwrap()];
        assert!(Subnet::lease(0, &all).unwrap_err().contains("--hosts-by devshardd"));
    }

    #[test]
    fn the_plan_of_a_link_names_run_and_both_ends() {
        let namespace = Namespace { holder: 42, address: Ipv4Addr::new(10, 214, 1, 10) };
        let plan: Vec<String> = commands("plabc123-0", Ipv4Addr::new(10, 214, 1, 1), &namespace)
            .iter()
            .map(|command| command.join(" "))
            .collect();
        assert_eq!(
            plan,
            [
                "ip link add plabc123-0 type veth peer name eth0 netns 42",
                "ip addr add 10.214.1.1 peer 10.214.1.10 dev plabc123-0",
                "ip link set plabc123-0 up",
                "nsenter -t 42 -n ip link set lo up",
                "nsenter -t 42 -n ip addr add 10.214.1.10 peer 10.214.1.1 dev eth0",
                "nsenter -t 42 -n ip link set eth0 up",
            ]
        );
    }

    #[test]
    fn addresses_of_a_full_subnet_stay_in_it() {
        let last = u32::from(RANGE) + HOST_OFFSET + HOSTS_MAX - 1;
        assert_eq!(Ipv4Addr::from(last).octets()[..3], RANGE.octets()[..3]);
        // Six characters, a dash and three digits: the kernel takes 15.
        assert!("plabc123-239".len() <= 15);
    }
}
