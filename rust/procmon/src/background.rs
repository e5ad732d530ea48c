//! A thread that does something at a steady pace until it is told to stop.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A running thread; it ends when this is dropped, or earlier by itself.
pub(crate) struct Background {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's side: when to go on.
pub(crate) struct Pace {
    stop: Receiver<()>,
    interval: Duration,
    next: Instant,
}

impl Background {
    pub(crate) fn spawn(
        name: &str,
        interval: Duration,
        work: impl FnOnce(Pace) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let pace = Pace {
            stop: stopped,
            interval,
            next: Instant::now() + interval,
        };
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || work(pace))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Waits for the thread's last round.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; what it left behind is still of use.
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

impl Pace {
    /// Waits for the next round; false when there is none. Rounds that were slept through are left out, not
    /// made up for.
    pub(crate) fn wait(&mut self) -> bool {
        let now = Instant::now();
        if self.next < now {
            self.next = now;
        }
        let goes_on = matches!(
            self.stop.recv_timeout(self.next.duration_since(now)),
            Err(RecvTimeoutError::Timeout)
        );
        self.next += self.interval;
        goes_on
    }
}
