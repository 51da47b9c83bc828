//! Proxy: a local port that leads to a destination through a link.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::connection::{Ends, Way, carry};
use crate::shape::Shape;
use crate::socket;
use crate::weather::Weather;

/// Largest number of simultaneous connections; further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// Pause before the next try after a failed accept.
const RETRY: Duration = Duration::from_millis(50);

/// Open link. Dropping it closes its port and breaks its connections.
pub struct Link {
    address: SocketAddr,
    inner: Arc<Inner>,
    listens: Option<JoinHandle<()>>,
}

/// Bytes that a link has delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes from the connecting peers.
    pub up_bytes: u64,
    /// Bytes to the connecting peers.
    pub down_bytes: u64,
}

struct Inner {
    to: SocketAddr,
    shape: Shape,
    opened: Instant,
    up: Way,
    down: Way,
    connections: Mutex<BTreeMap<u64, Arc<Ends>>>,
    closed: AtomicBool,
}

impl Link {
    /// Opens a free local port that leads to `to` through a link of `shape`.
    ///
    /// # Errors
    /// The system has no free port, or refuses the buffer sizes.
    pub fn open(to: SocketAddr, shape: Shape) -> io::Result<Self> {
        let listener = socket::listen(shape.buffer_bytes())?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            to,
            shape,
            opened: Instant::now(),
            up: Way::new(shape),
            down: Way::new(shape),
            connections: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let listens = thread::spawn({
            let inner = Arc::clone(&inner);
            move || listen(&listener, &inner)
        });
        Ok(Self { address, inner, listens: Some(listens) })
    }

    /// Returns the address to connect to instead of the destination.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the conditions from now on, for open and future connections.
    pub fn set(&self, weather: Weather) {
        self.inner.up.set(weather);
        self.inner.down.set(weather);
    }

    /// Returns the bytes delivered so far on all connections.
    #[must_use]
    pub fn carried(&self) -> Carried {
        Carried { up_bytes: self.inner.up.carried_bytes(), down_bytes: self.inner.down.carried_bytes() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        // Threads that wait on a cut link notice the end.
        self.set(Weather::FAIR);
        self.inner.connections().values().for_each(|ends| ends.shut());
        // Wakes the accepting thread. If it cannot be reached, it is better abandoned than waited for.
        if TcpStream::connect(self.address).is_ok()
            && let Some(listens) = self.listens.take()
        {
            let _ = listens.join();
        }
    }
}

impl Inner {
    /// Returns the open connections. A panic under the lock leaves the map consistent.
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Ends>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

fn listen(listener: &TcpListener, inner: &Arc<Inner>) {
    for number in 0.. {
        let accepted = listener.accept();
        if inner.is_closed() {
            return;
        }
        let Ok((near, _)) = accepted else {
            // The system is short of a resource for the moment.
            thread::sleep(RETRY);
            continue;
        };
        if inner.connections().len() < CONNECTIONS_MAX {
            let inner = Arc::clone(inner);
            thread::spawn(move || serve(near, number, &inner));
        }
    }
}

fn serve(near: TcpStream, number: u64, inner: &Inner) {
    // If the destination is unreachable, the connection just ends.
    let Ok(far) = socket::connect(inner.to, inner.shape.buffer_bytes()) else { return };
    let ends = Arc::new(Ends { near, far });
    let at_once = [&ends.near, &ends.far].map(|stream| stream.set_nodelay(true));
    if at_once.iter().any(Result::is_err) {
        return;
    }
    inner.connections().insert(number, Arc::clone(&ends));
    // The link may have been closed before this connection was registered.
    if inner.is_closed() {
        ends.shut();
    }
    carry(&ends, &inner.up, &inner.down, inner.shape, inner.opened);
    inner.connections().remove(&number);
}
