//! The proxy: a port of this machine that leads elsewhere through a link.

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

/// Most connections at a time; more are closed as soon as they come.
const CONNECTIONS_MAX: usize = 256;
/// Time until the next try when the system does not hand out a connection.
const RETRY: Duration = Duration::from_millis(50);

/// An open link. Dropping it closes its port and breaks its connections.
pub struct Link {
    address: SocketAddr,
    inner: Arc<Inner>,
    listens: Option<JoinHandle<()>>,
}

/// Bytes that a link has delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// From those who connected.
    pub up_bytes: u64,
    /// To them.
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
    /// A free port of this machine that leads to `to` through a link of `shape`.
    ///
    /// # Errors
    /// The system has no port, or refuses the sizes of buffers.
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

    /// Where to connect in place of the other end.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is like from now on, for the connections that are open and those to come.
    pub fn set(&self, weather: Weather) {
        self.inner.up.set(weather);
        self.inner.down.set(weather);
    }

    /// What it has delivered so far, of all its connections.
    #[must_use]
    pub fn carried(&self) -> Carried {
        Carried { up_bytes: self.inner.up.carried_bytes(), down_bytes: self.inner.down.carried_bytes() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        // Whoever waits for a line that is cut learns of the end.
        self.set(Weather::FAIR);
        self.inner.connections().values().for_each(|ends| ends.shut());
        // Wakes who listens. If it cannot be reached, it is better left than waited for.
        if TcpStream::connect(self.address).is_ok()
            && let Some(listens) = self.listens.take()
        {
            let _ = listens.join();
        }
    }
}

impl Inner {
    /// Connections that are open. Whoever panicked with the lock has left the map whole.
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
            // The system is short of something, for the moment.
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
    // Whoever is not there is told so by the end of the connection.
    let Ok(far) = socket::connect(inner.to, inner.shape.buffer_bytes()) else { return };
    let ends = Arc::new(Ends { near, far });
    let at_once = [&ends.near, &ends.far].map(|stream| stream.set_nodelay(true));
    if at_once.iter().any(Result::is_err) {
        return;
    }
    inner.connections().insert(number, Arc::clone(&ends));
    // The link may have been closed before this connection was known.
    if inner.is_closed() {
        ends.shut();
    }
    carry(&ends, &inner.up, &inner.down, inner.shape, inner.opened);
    inner.connections().remove(&number);
}
