//! Leasing subnets: one private range away from the engine's defaults, checked against host routes and networks of the
//! engine, one lock file a lease (design compose-engine 13, reports 9 and 10).

use std::collections::BTreeSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::error::ComposeError;

/// Begin of the range: the engine's own pools are 172.17–31 and 192.168.
pub const RANGE_BASE: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 0);
/// Its prefix length.
pub const RANGE_PREFIX: u8 = 16;

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    /// Base address.
    pub base: u32,
    /// Prefix length.
    pub prefix: u8,
}

impl Net {
    /// From text such as `10.0.0.0/8`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        let base = u32::from(address.parse::<Ipv4Addr>().ok()?) & mask(prefix);
        Some(Self { base, prefix })
    }

    /// Whether an address of one is an address of the other.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        let shorter = if self.prefix < other.prefix { self.prefix } else { other.prefix };
        self.base & mask(shorter) == other.base & mask(shorter)
    }
}

impl std::fmt::Display for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.prefix)
    }
}

const fn mask(prefix: u8) -> u32 {
    if prefix == 0 { 0 } else { u32::MAX << (32 - prefix as u32) }
}

/// Routes of this host from the text of `/proc/net/route`; the default route says nothing about who uses what.
#[must_use]
pub fn routes(text: &str) -> Vec<Net> {
    let one = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let base = u32::from_str_radix(fields.get(1)?, 16).ok()?.swap_bytes();
        let mask = u32::from_str_radix(fields.get(7)?, 16).ok()?.swap_bytes();
        let prefix = u8::try_from(mask.count_ones()).ok()?;
        (prefix > 0).then_some(Net { base, prefix })
    };
    text.lines().skip(1).filter_map(one).collect()
}

/// The folder of lock files and the range they are for.
#[derive(Clone, Debug)]
pub struct Leases {
    folder: PathBuf,
    range: Net,
}

impl Leases {
    /// Leases in the default range, locked in a folder that every run of this machine uses.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self::within(folder, Net { base: u32::from(RANGE_BASE), prefix: RANGE_PREFIX })
    }

    /// Leases in another range.
    #[must_use]
    pub fn within(folder: &Path, range: Net) -> Self {
        Self { folder: folder.to_path_buf(), range }
    }

    /// The range in words.
    #[must_use]
    pub fn range(&self) -> String {
        self.range.to_string()
    }

    fn lock(&self, net: Net) -> PathBuf {
        self.folder.join(format!("{}-{}", Ipv4Addr::from(net.base), net.prefix))
    }

    /// Takes the next free network. `salt` spreads runs over the range; `not` are networks that the engine refused.
    ///
    /// # Errors
    /// [`ComposeError::NoSubnet`] when everything is taken.
    pub fn take(
        &self,
        prefix: u8,
        project: &str,
        salt: u64,
        busy: &[Net],
        not: &BTreeSet<u32>,
    ) -> Result<Net, ComposeError> {
        std::fs::create_dir_all(&self.folder).map_err(ComposeError::io(&self.folder))?;
        let count = 1_u64 << (prefix.max(self.range.prefix) - self.range.prefix).min(31);
        let mut locked = 0_usize;
        for step in 0..count {
            let index = u32::try_from((salt + step) % count).unwrap_or_default();
            let net = Net { base: self.range.base + (index << (32 - u32::from(prefix))), prefix };
            if not.contains(&net.base) || busy.iter().any(|other| net.overlaps(*other)) {
                continue;
            }
            match std::fs::File::create_new(self.lock(net)) {
                Ok(mut file) => {
                    file.write_all(project.as_bytes()).map_err(ComposeError::io(self.lock(net)))?;
                    return Ok(net);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => locked += 1,
                Err(error) => return Err(ComposeError::Io { path: self.lock(net), source: error }),
            }
        }
        let overlapping = busy.iter().filter(|other| other.overlaps(self.range)).map(ToString::to_string);
        let overlapping: Vec<String> = overlapping.take(8).collect();
        Err(ComposeError::NoSubnet {
            range: self.range(),
            reason: format!("{locked} leased by runs, overlapping: {}", overlapping.join(", ")),
        })
    }

    /// Gives a network back.
    pub fn give(&self, net: Net) {
        // Another process may have swept it: gone is what we want.
        drop(std::fs::remove_file(self.lock(net)));
    }

    /// Gives back every lease of a project.
    pub fn give_all(&self, project: &str) {
        for (path, owner) in self.all() {
            if owner == project {
                drop(std::fs::remove_file(path));
            }
        }
    }

    /// Lock files with the project in each.
    #[must_use]
    pub fn all(&self) -> Vec<(PathBuf, String)> {
        let Ok(list) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let read = |entry: std::fs::DirEntry| {
            let path = entry.path();
            std::fs::read_to_string(&path).ok().map(|owner| (path, owner))
        };
        list.flatten().filter_map(read).collect()
    }
}

/// The upper half for dynamic addresses when every static one lies in the lower half (report 12).
#[must_use]
pub fn dynamic_half(net: Net, static_offsets: &BTreeSet<u32>) -> Option<(Ipv4Addr, u8)> {
    let half = 1_u32 << (32 - u32::from(net.prefix) - 1);
    match static_offsets.last() {
        Some(last) if *last < half => Some((Ipv4Addr::from(net.base + half), net.prefix + 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn report_10_leases_avoid_routes_networks_and_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let leases = Leases::within(folder.path(), Net::parse("10.9.0.0/22").unwrap());
        let busy = [Net::parse("10.9.1.128/25").unwrap()];
        let mut taken = Vec::new();
        for project in ["a", "b", "c"] {
            taken.push(leases.take(24, project, 1, &busy, &BTreeSet::new()).unwrap().to_string());
        }
        assert_eq!(taken, ["10.9.2.0/24", "10.9.3.0/24", "10.9.0.0/24"]);
        let error = leases.take(24, "d", 0, &busy, &BTreeSet::new()).unwrap_err().to_string();
        assert!(error.contains("3 leased by runs") && error.contains("10.9.1.128/25"), "{error}");
        leases.give_all("b");
        assert_eq!(leases.take(24, "d", 0, &busy, &BTreeSet::new()).unwrap().to_string(), "10.9.3.0/24");
    }

    #[test]
    fn routes_are_read_and_the_default_route_is_none() {
        let text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                    eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        let nets: Vec<String> = routes(text).iter().map(ToString::to_string).collect();
        assert_eq!(nets, ["172.17.0.0/16"]);
    }

    #[test]
    fn report_12_dynamic_addresses_keep_out_of_the_static_half() {
        let net = Net::parse("10.9.0.0/24").unwrap();
        let (base, prefix) = dynamic_half(net, &BTreeSet::from([5, 20])).unwrap();
        assert_eq!((base.to_string(), prefix), ("10.9.0.128".to_owned(), 25));
        assert_eq!(dynamic_half(net, &BTreeSet::new()), None);
        assert_eq!(dynamic_half(net, &BTreeSet::from([200])), None);
    }

    proptest! {
        #[test]
        fn overlap_is_the_same_from_both_sides(a in any::<u32>(), b in any::<u32>(), p in 0_u8..=32, q in 0_u8..=32) {
            let (a, b) = (Net { base: a & mask(p), prefix: p }, Net { base: b & mask(q), prefix: q });
            prop_assert_eq!(a.overlaps(b), b.overlaps(a));
            prop_assert!(a.overlaps(a));
        }
    }
}
