//! Parallel runs.

use std::num::NonZeroUsize;
use std::sync::{Mutex, mpsc};
use std::thread;

/// Applies `work` to each of `items` in order, `jobs` at a time, and passes each result to `done` as it arrives, with
/// the index of its item. No further item begins once `work` returns `None` or `done` fails.
///
/// # Errors
/// That of `done`.
pub fn each<T: Sync, R: Send, E>(
    jobs: NonZeroUsize,
    items: &[T],
    work: impl Fn(&T) -> Option<R> + Sync,
    mut done: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let queue = Mutex::new(items.iter().enumerate());
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.get().min(items.len()) {
            let (tell, queue, work) = (tell.clone(), &queue, &work);
            scope.spawn(move || {
                let next = || queue.lock().expect("no thread panics with the lock").next();
                while let Some((index, item)) = next() {
                    let Some(result) = work(item) else { return };
                    if tell.send((index, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        // Without a receiver, each thread ends after its current item.
        let told = told;
        told.iter().try_for_each(|(index, result)| done(index, result))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

    #[test]
    fn all_is_done_once_until_there_is_an_end() {
        let items: Vec<u32> = (0..50).collect();
        let collect = |work: &(dyn Fn(&u32) -> Option<u32> + Sync), last: usize| {
            let mut found = Vec::new();
            let ended = each(JOBS, &items, work, |index, result| {
                found.push((index, result));
                if found.len() == last { Err("enough") } else { Ok(()) }
            });
            found.sort_unstable();
            (found, ended)
        };
        let (found, ended) = collect(&|item| Some(2 * item), 100);
        assert_eq!((found, ended), ((0..50).map(|i| (i as usize, 2 * i)).collect(), Ok(())));
        let (found, ended) = collect(&|item| (*item < 20).then_some(0), 100);
        assert_eq!((found.len(), ended), (20, Ok(())));
        let (found, ended) = collect(&|_| Some(0), 7);
        assert_eq!((found.len(), ended), (7, Err("enough")));
    }
}
