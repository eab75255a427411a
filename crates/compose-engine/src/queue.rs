//! The queue of runs on one engine: who may run now, by order of arrival, cores and memory; a run that measures is alone.
//!
//! State: one ticket file a run in a folder that all runs of a machine share, changed under one file lock. A ticket
//! whose owner is gone counts for nothing and is removed by whoever sees it.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::ComposeError;
use crate::labels::Owner;

/// What a run asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Cores that it keeps busy.
    pub cores: u64,
    /// Memory of its containers, bytes.
    pub mem_bytes: u64,
    /// Its figures count: nothing may run beside it.
    pub alone: bool,
}

/// What the engine's machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Cores.
    pub cores: u64,
    /// Memory, bytes.
    pub mem_bytes: u64,
}

/// A run in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Format version.
    pub v: u32,
    /// Run.
    pub run_id: String,
    /// Owner.
    pub owner: Owner,
    /// Place in the order of arrival.
    pub number: u64,
    /// What it asks for.
    pub needs: Needs,
}

/// Numbers of the tickets that may run now. Tickets come in order of arrival and none is overtaken, so that none waits
/// for ever. The first one may always run: what is larger than the machine runs alone.
#[must_use]
pub fn admitted(tickets: &[Ticket], capacity: Capacity) -> BTreeSet<u64> {
    let mut order: Vec<&Ticket> = tickets.iter().collect();
    order.sort_by_key(|ticket| ticket.number);
    let mut running = BTreeSet::new();
    let (mut cores, mut mem_bytes) = (0_u64, 0_u64);
    for ticket in order {
        let needs = ticket.needs;
        cores = cores.saturating_add(needs.cores);
        mem_bytes = mem_bytes.saturating_add(needs.mem_bytes);
        let fits = cores <= capacity.cores && mem_bytes <= capacity.mem_bytes && !needs.alone;
        if !running.is_empty() && !fits {
            break;
        }
        running.insert(ticket.number);
        if needs.alone {
            break;
        }
    }
    running
}

/// The folder of one engine's queue.
#[derive(Clone, Debug)]
pub struct Queue {
    folder: PathBuf,
}

/// A place in the queue; given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    queue: Queue,
    ticket: Ticket,
}

impl Queue {
    /// The queue in a folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Takes the next number.
    ///
    /// # Errors
    /// [`ComposeError::Io`].
    pub fn join(&self, run_id: &str, owner: Owner, needs: Needs) -> Result<Place, ComposeError> {
        let lock = self.lock()?;
        let number = self.tickets()?.iter().map(|ticket| ticket.number + 1).max().unwrap_or(1);
        let ticket = Ticket { v: 1, run_id: run_id.to_owned(), owner, number, needs };
        let path = self.path(number);
        let text = serde_json::to_vec(&ticket).unwrap_or_default();
        std::fs::write(&path, text).map_err(ComposeError::io(&path))?;
        drop(lock);
        Ok(Place { queue: self.clone(), ticket })
    }

    /// One process at a time changes the folder; the lock goes with the file handle.
    fn lock(&self) -> Result<File, ComposeError> {
        std::fs::create_dir_all(&self.folder).map_err(ComposeError::io(&self.folder))?;
        let path = self.folder.join("lock");
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(ComposeError::io(&path))?;
        file.lock().map_err(ComposeError::io(&path))?;
        Ok(file)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}.json"))
    }

    /// Every ticket that can be read.
    fn tickets(&self) -> Result<Vec<Ticket>, ComposeError> {
        let list = std::fs::read_dir(&self.folder).map_err(ComposeError::io(&self.folder))?;
        let json = list
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "json"));
        // One that is being removed at this moment is no ticket any more.
        Ok(json.filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).collect())
    }
}

impl Place {
    /// Looks once: nothing when the run may go on, otherwise the runs that it waits for. `gone` says that an owner has
    /// ended; its ticket is removed.
    ///
    /// # Errors
    /// [`ComposeError::Io`].
    pub fn waits_for(
        &self,
        capacity: Capacity,
        gone: impl Fn(&Owner) -> bool,
    ) -> Result<Vec<String>, ComposeError> {
        let _lock = self.queue.lock()?;
        let (dead, living): (Vec<Ticket>, Vec<Ticket>) =
            self.queue.tickets()?.into_iter().partition(|ticket| gone(&ticket.owner));
        for ticket in dead {
            drop(std::fs::remove_file(self.queue.path(ticket.number)));
        }
        if admitted(&living, capacity).contains(&self.ticket.number) {
            return Ok(Vec::new());
        }
        let before = living.into_iter().filter(|ticket| ticket.number < self.ticket.number);
        Ok(before.map(|ticket| ticket.run_id).collect())
    }
}

impl Place {
    /// The lock of the queue while this run is the only one in it: nobody can join until it is dropped. Nothing when
    /// there are others.
    ///
    /// # Errors
    /// [`ComposeError::Io`].
    pub fn only_one(&self) -> Result<Option<File>, ComposeError> {
        let lock = self.queue.lock()?;
        Ok((self.queue.tickets()?.len() == 1).then_some(lock))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(std::fs::remove_file(self.queue.path(self.ticket.number)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MACHINE: Capacity = Capacity { cores: 2, mem_bytes: 100 };

    fn owner(pid: u32) -> Owner {
        Owner { host: "h".into(), boot: "b".into(), pid, start_ticks: 1 }
    }

    fn ticket(number: u64, cores: u64, mem_bytes: u64, alone: bool) -> Ticket {
        let needs = Needs { cores, mem_bytes, alone };
        Ticket { v: 1, run_id: format!("r{number}"), owner: owner(1), number, needs }
    }

    #[test]
    fn cores_memory_and_measuring_decide_and_nobody_is_overtaken() {
        type Asked = (u64, u64, bool);
        let table: [(&[Asked], &[u64]); 7] = [
            (&[(1, 10, false), (1, 10, false), (1, 10, false)], &[1, 2]),
            (&[(1, 60, false), (1, 60, false)], &[1]),
            (&[(1, 10, true), (1, 10, false)], &[1]),
            (&[(1, 10, false), (1, 10, true), (1, 10, false)], &[1]),
            (&[(9, 900, false), (1, 10, false)], &[1]),
            (&[(1, 10, false), (2, 10, false), (1, 10, false)], &[1]),
            (&[], &[]),
        ];
        for (needs, wanted) in table {
            let tickets: Vec<Ticket> = (1..).zip(needs).map(|(n, (c, m, a))| ticket(n, *c, *m, *a)).collect();
            let got: Vec<u64> = admitted(&tickets, MACHINE).into_iter().collect();
            assert_eq!(got, wanted, "{needs:?}");
        }
    }

    #[test]
    fn places_are_given_back_and_those_of_the_dead_count_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::new(folder.path());
        let measuring = Needs { cores: 1, mem_bytes: 1, alone: true };
        let first = queue.join("one", owner(1), measuring).unwrap();
        let second = queue.join("two", owner(2), measuring).unwrap();
        let nobody = |_: &Owner| false;
        assert!(first.waits_for(MACHINE, nobody).unwrap().is_empty());
        assert_eq!(second.waits_for(MACHINE, nobody).unwrap(), ["one"]);
        let third = queue.join("three", owner(3), measuring).unwrap();
        drop(first);
        assert!(second.waits_for(MACHINE, nobody).unwrap().is_empty());
        // A killed owner drops nothing.
        std::mem::forget(second);
        assert_eq!(third.waits_for(MACHINE, nobody).unwrap(), ["two"]);
        assert!(third.waits_for(MACHINE, |owner| owner.pid == 2).unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn never_more_than_the_machine_has_unless_one_alone_is_larger(
            needs in proptest::collection::vec((0_u64..4, 0_u64..80, any::<bool>()), 1..12),
        ) {
            let tickets: Vec<Ticket> = (1..).zip(&needs).map(|(n, (c, m, a))| ticket(n, *c, *m, *a)).collect();
            let running = admitted(&tickets, MACHINE);
            prop_assert!(running.contains(&1));
            let held: Vec<&Ticket> = tickets.iter().filter(|t| running.contains(&t.number)).collect();
            if held.len() > 1 {
                prop_assert!(held.iter().map(|t| t.needs.cores).sum::<u64>() <= MACHINE.cores);
                prop_assert!(held.iter().map(|t| t.needs.mem_bytes).sum::<u64>() <= MACHINE.mem_bytes);
                prop_assert!(held.iter().all(|t| !t.needs.alone));
            }
        }
    }
}
