//! The deadlines of one request, as plain numbers; the event loop looks at the nearest one.

/// What a request is waiting for; each has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The connection.
    Connect,
    /// Complete response headers.
    Headers,
    /// The first byte of the body.
    FirstByte,
    /// The next bytes of the body.
    Idle,
}

/// Which deadline passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The limit of a phase.
    Phase(Phase),
    /// The limit of the whole request.
    Total,
    /// The request's own cancel point.
    Cancel,
}

/// Deadlines as clock offsets.
#[derive(Clone, Debug)]
pub struct Deadlines {
    total_us: u64,
    phase: Option<(u64, Phase)>,
    cancel_us: Option<u64>,
}

impl Deadlines {
    /// Deadlines of a request that must have ended at `total_us`.
    #[must_use]
    pub fn new(total_us: u64) -> Self {
        Self { total_us, phase: None, cancel_us: None }
    }

    /// Starts waiting for a phase that must be over at `deadline_us`.
    pub fn enter(&mut self, phase: Phase, deadline_us: u64) {
        self.phase = Some((deadline_us, phase));
    }

    /// Sets when the request cuts itself.
    pub fn cancel_at(&mut self, offset_us: u64) {
        self.cancel_us = Some(offset_us);
    }

    /// The deadline that has passed at `now_us`.
    #[must_use]
    pub fn passed(&self, now_us: u64) -> Option<Expiry> {
        let (at_us, expiry) = self.next();
        (now_us >= at_us).then_some(expiry)
    }

    /// The nearest one. At the same instant the own cancel comes first, then the total, then the phase.
    #[must_use]
    pub fn next(&self) -> (u64, Expiry) {
        let mut next = (self.total_us, Expiry::Total);
        if let Some((at_us, phase)) = self.phase
            && at_us < next.0
        {
            next = (at_us, Expiry::Phase(phase));
        }
        match self.cancel_us {
            Some(at_us) if at_us <= next.0 => (at_us, Expiry::Cancel),
            _ => next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_deadline_counts() {
        let mut deadlines = Deadlines::new(100);
        assert_eq!(deadlines.passed(99), None);
        assert_eq!(deadlines.passed(100), Some(Expiry::Total));
        deadlines.enter(Phase::Headers, 50);
        assert_eq!(deadlines.passed(50), Some(Expiry::Phase(Phase::Headers)));
        deadlines.cancel_at(50);
        assert_eq!(deadlines.passed(50), Some(Expiry::Cancel));
        deadlines.enter(Phase::Idle, 200);
        assert_eq!(deadlines.passed(49), None);
        assert_eq!(deadlines.next(), (50, Expiry::Cancel));
    }
}
