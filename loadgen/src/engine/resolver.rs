//! Resolves names beside the event loop, since the resolver of the system waits.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::poller::Waker;
use crate::clock::Clock;
use crate::target::look_up;

/// An answer of the resolver.
#[derive(Debug)]
pub struct Answer {
    /// Route that it is for.
    pub route: usize,
    /// Addresses, or why there are none.
    pub found: Result<Vec<SocketAddr>, String>,
    /// What the resolver took, microseconds.
    pub took_us: u64,
}

/// A thread that resolves one name after another. The event loop asks once a route at a time, so that the channels
/// hold no more than there are routes.
#[derive(Debug)]
pub struct Resolver {
    questions: Sender<(usize, String, u16)>,
    answers: Receiver<Answer>,
}

impl Resolver {
    /// Starts the thread; it ends when the resolver is dropped and its last question is answered.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(clock: Clock, waker: Waker) -> std::io::Result<Self> {
        let (questions, inbox) = channel::<(usize, String, u16)>();
        let (outbox, answers) = channel();
        std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            while let Ok((route, name, port)) = inbox.recv() {
                let start_us = clock.now_us();
                let found = look_up(&name, port);
                let took_us = clock.now_us().saturating_sub(start_us);
                if outbox.send(Answer { route, found, took_us }).is_err() {
                    return;
                }
                waker.wake();
            }
        })?;
        Ok(Self { questions, answers })
    }

    /// Asks for the addresses of a route.
    pub fn ask(&self, route: usize, name: &str, port: u16) {
        // A thread that is gone answers nothing; requests then end at their limit for connecting.
        let _ = self.questions.send((route, name.to_owned(), port));
    }

    /// What has been answered since.
    pub fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}
