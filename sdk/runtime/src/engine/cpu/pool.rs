//! A pool of threads that share the jobs of a step.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

/// Threads that live as long as the engine, so that no step starts threads and their packing buffers stay allocated.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    threads: Vec<JoinHandle<()>>,
}

struct PoolState {
    state: Mutex<RoundState>,
    started: Condvar,
    finished: Condvar,
    /// Copy of `RoundState::round`, readable without the lock.
    round: AtomicUsize,
    /// Copy of `RoundState::running`, readable without the lock.
    running: AtomicUsize,
}

struct RoundState {
    /// Number of tasks handed out.
    round: usize,
    /// Threads still working on the task of this round.
    running: usize,
    task: Option<Task>,
    panic: Option<Box<dyn Any + Send>>,
    closing: bool,
}

#[derive(Clone, Copy)]
struct Task(*const (dyn Fn() + Sync));

// SAFETY: what it points to is `Sync`, and `ThreadPool::run` keeps it alive while any thread may use it.
unsafe impl Send for Task {}

/// Number of times that a thread polls an atomic before it sleeps: some tens of microseconds, about the cost of a
/// wake-up.
const SPINS: u32 = 4_000;

impl ThreadPool {
    /// Creates a pool of `threads` threads, including the caller's.
    pub fn new(threads: NonZeroUsize) -> std::io::Result<Self> {
        let state = RoundState { round: 0, running: 0, task: None, panic: None, closing: false };
        let shared = Arc::new(PoolState {
            state: Mutex::new(state),
            started: Condvar::new(),
            finished: Condvar::new(),
            round: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
        });
        let mut pool = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for i in 1..threads.get() {
            let shared = Arc::clone(&shared);
            pool.threads.push(Builder::new().name(format!("engine {i}")).spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Returns the number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Does `work` once on each job. Any thread takes the next job. Jobs must not wait for later jobs.
    pub fn each<J: Send>(&mut self, jobs: &mut [J], work: impl Fn(&mut J) + Sync) {
        let (next, len) = (AtomicUsize::new(0), jobs.len());
        let jobs = Jobs(jobs.as_mut_ptr());
        self.run(&|| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= len {
                    return;
                }
                // SAFETY: in bounds; each index is drawn once, so no two threads hold the same job, and
                // `jobs` is borrowed until `run` returns, which is after the last use.
                work(unsafe { jobs.at(index) });
            }
        });
    }

    /// Calls `task` on every thread, and returns when all calls have returned.
    fn run(&mut self, task: &(dyn Fn() + Sync)) {
        if self.threads.is_empty() {
            return task();
        }
        // SAFETY: only the lifetime changes. The pointer is used by threads counted in `running`, and
        // this function returns, or unwinds, only once that count is 0.
        let erased =
            Task(unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(task) });
        let mut state = self.shared.lock();
        state.task = Some(erased);
        state.round += 1;
        state.running = self.threads.len();
        self.shared.running.store(state.running, Ordering::Release);
        self.shared.round.store(state.round, Ordering::Release);
        drop(state);
        self.shared.started.notify_all();

        let own = catch_unwind(AssertUnwindSafe(task));
        spin_while(|| self.shared.running.load(Ordering::Acquire) > 0);
        let mut state = self.shared.lock();
        while state.running > 0 {
            state = self.shared.finished.wait(state).expect("no thread panics with the lock");
        }
        state.task = None;
        let panic = own.err().or(state.panic.take());
        drop(state);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.started.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("panics of tasks are caught");
        }
    }
}

impl PoolState {
    fn lock(&self) -> MutexGuard<'_, RoundState> {
        self.state.lock().expect("no thread panics with the lock")
    }

    fn serve(&self) {
        let mut done = 0;
        loop {
            spin_while(|| self.round.load(Ordering::Acquire) == done);
            let mut state = self.lock();
            while state.round == done && !state.closing {
                state = self.started.wait(state).expect("no thread panics with the lock");
            }
            if state.closing {
                return;
            }
            done = state.round;
            let task = state.task.expect("a new round has a task");
            drop(state);
            // SAFETY: this thread is counted in `running`, so `run` has not returned.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*task.0)() }));
            let mut state = self.lock();
            if let Err(panic) = result {
                state.panic = Some(panic);
            }
            state.running -= 1;
            self.running.store(state.running, Ordering::Release);
            if state.running == 0 {
                self.finished.notify_one();
            }
        }
    }
}

fn spin_while(waiting: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if !waiting() {
            return;
        }
        std::hint::spin_loop();
    }
}

struct Jobs<J>(*mut J);

// SAFETY: each job goes to one thread only, which needs no more than `J: Send`.
unsafe impl<J: Send> Sync for Jobs<J> {}

impl<J> Jobs<J> {
    /// # Safety
    /// `index` is in bounds, and no other reference to that job is alive.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    unsafe fn at(&self, index: usize) -> &mut J {
        // SAFETY: as promised by the caller.
        unsafe { &mut *self.0.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn does_each_job_once() {
        for threads in 1..5 {
            let mut pool = pool(threads);
            let mut jobs = vec![0_u32; 1000];
            for _ in 0..50 {
                pool.each(&mut jobs, |job| *job += 1);
            }
            assert_eq!(jobs, vec![50; 1000], "{threads} threads");
        }
    }

    #[test]
    fn passes_a_panic_on_and_lives() {
        let mut pool = pool(3);
        let mut jobs: Vec<usize> = (0..100).collect();
        let failed = catch_unwind(AssertUnwindSafe(|| pool.each(&mut jobs, |job| assert_ne!(*job, 50))));
        assert!(failed.is_err());
        pool.each(&mut jobs, |job| *job = 0);
        assert_eq!(jobs.iter().sum::<usize>(), 0);
    }
}
