//! The kernel's side of the event loop: readiness by epoll, the next send by a timerfd (whose precision is that of
//! the kernel's timers, not of milliseconds), and waking from another thread by an eventfd.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Events taken from the kernel at once; those of a busier turn come with the next one.
const EVENTS_MAX: usize = 256;
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// Wakes an event loop from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the loop take a turn now.
    pub fn wake(&self) {
        // A full counter means that a wake is due already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// What a socket is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes or the end.
    Read,
    /// The same, and room for writing (or the end of connecting).
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// A socket that is ready for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Number it is watched under.
    pub key: usize,
    /// There is something to read, the end and errors included.
    pub readable: bool,
}

/// Readiness of everything that one thread waits for.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    wake: Arc<OwnedFd>,
    /// What the timer is set to, as the caller's instant.
    armed_us: Option<u64>,
    /// Calls of the kernel so far: waits, changes of what is watched, settings of the timer.
    calls: [Cell<u64>; 3],
}

/// Place of a kind of call in the counts.
const WAITS: usize = 0;
const WATCHES: usize = 1;
const TIMERS: usize = 2;

impl Poller {
    /// A poller that watches nothing yet.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // By edge: an expiry of the timer need not be read away, which would be one call a send.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), edge)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), edge)?;
        Ok(Self { epoll, timer, wake: Arc::new(wake), armed_us: None, calls: Default::default() })
    }

    /// A handle for other threads.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Waits, changes of what is watched, and settings of the timer so far.
    #[must_use]
    pub fn calls(&self) -> [u64; 3] {
        [WAITS, WATCHES, TIMERS].map(|kind| self.calls[kind].get())
    }

    fn count(&self, kind: usize) {
        self.calls[kind].set(self.calls[kind].get() + 1);
    }

    /// Watches a socket under a number.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn add(&self, socket: impl AsFd, key: usize, interest: Interest) -> Result<(), Errno> {
        self.count(WATCHES);
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key as u64), interest.flags())
    }

    /// Watches it for something else.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn modify(&self, socket: impl AsFd, key: usize, interest: Interest) -> Result<(), Errno> {
        self.count(WATCHES);
        epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(key as u64), interest.flags())
    }

    /// Sets the precise timer to `at_us`, seen from `now_us`. Setting it to where it stands costs nothing.
    pub fn set_timer(&mut self, at_us: u64, now_us: u64) {
        if self.armed_us == Some(at_us) {
            return;
        }
        // 0 would turn the timer off.
        let wait_ns = at_us.saturating_sub(now_us).saturating_mul(1_000).max(1);
        let value = timespec(wait_ns);
        let spec = Itimerspec { it_interval: timespec(0), it_value: value };
        self.count(TIMERS);
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).is_ok() {
            self.armed_us = Some(at_us);
        }
    }

    /// Waits for events at most `timeout_us` (rounded up to milliseconds; `None` = without limit), and gives the
    /// sockets that are ready. A signal that interrupts is no event.
    pub fn wait(&mut self, timeout_us: Option<u64>, ready: &mut Vec<Ready>) {
        let timeout = timeout_us.map(|us| timespec(us.div_ceil(1_000).saturating_mul(1_000_000)));
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        self.count(WAITS);
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) else { return };
        for event in events {
            match { event.data }.u64() {
                TIMER => self.armed_us = None,
                WAKE => {}
                key => {
                    let Ok(key) = usize::try_from(key) else { continue };
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                    ready.push(Ready { key, readable: { event.flags }.intersects(flags) });
                }
            }
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    // Two centuries of nanoseconds fit into the signed field.
    let part = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Timespec { tv_sec: part(ns / 1_000_000_000), tv_nsec: part(ns % 1_000_000_000) }
}
