//! Proxy: a local port that leads to a destination through a link.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::shape::{AHEAD, Flight, LinkConditions, LinkProfile, RateLimiter};

/// Largest number of simultaneous connections; further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// Pause before the next try after a failed accept.
const RETRY: Duration = Duration::from_millis(50);

/// Open link. Dropping it closes its port and breaks its connections.
pub struct EmulatedLink {
    address: SocketAddr,
    inner: Arc<Inner>,
    listens: Option<JoinHandle<()>>,
}

/// Bytes that a link has delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkBytes {
    /// Bytes from the connecting peers.
    pub up_bytes: u64,
    /// Bytes to the connecting peers.
    pub down_bytes: u64,
}

struct Inner {
    to: SocketAddr,
    shape: LinkProfile,
    opened: Instant,
    up: LinkDirection,
    down: LinkDirection,
    connections: Mutex<BTreeMap<u64, Arc<ConnectionEnds>>>,
    closed: AtomicBool,
}

impl EmulatedLink {
    /// Opens a free local port that leads to `to` through a link of `shape`.
    ///
    /// # Errors
    /// The system has no free port, or refuses the buffer sizes.
    pub fn open(to: SocketAddr, shape: LinkProfile) -> io::Result<Self> {
        let listener = listen(shape.buffer_bytes())?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            to,
            shape,
            opened: Instant::now(),
            up: LinkDirection::new(shape),
            down: LinkDirection::new(shape),
            connections: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let listens = thread::spawn({
            let inner = Arc::clone(&inner);
            move || accept(&listener, &inner)
        });
        Ok(Self { address, inner, listens: Some(listens) })
    }

    /// Returns the address to connect to instead of the destination.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the conditions from now on, for open and future connections.
    pub fn set(&self, conditions: LinkConditions) {
        self.inner.up.set(conditions);
        self.inner.down.set(conditions);
    }

    /// Returns the bytes delivered so far on all connections.
    #[must_use]
    pub fn carried(&self) -> LinkBytes {
        LinkBytes { up_bytes: self.inner.up.carried_bytes(), down_bytes: self.inner.down.carried_bytes() }
    }
}

impl Drop for EmulatedLink {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        // Threads that wait on a cut link notice the end.
        self.set(LinkConditions::FAIR);
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
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionEnds>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

fn accept(listener: &TcpListener, inner: &Arc<Inner>) {
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
    let Ok(far) = connect(inner.to, inner.shape.buffer_bytes()) else { return };
    let ends = Arc::new(ConnectionEnds { near, far });
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

/// Interval of the checks while a direction is cut.
const POLL: Duration = Duration::from_millis(10);

/// One direction of a link, shared by its connections.
pub(crate) struct LinkDirection {
    lane: Mutex<RateLimiter>,
    carried_bytes: Mutex<u64>,
    /// Current conditions, and the number of pieces sent so far.
    conditions: Mutex<(LinkConditions, u64)>,
    shape: LinkProfile,
}

impl LinkDirection {
    /// Creates one direction of a link of `shape`.
    pub(crate) fn new(shape: LinkProfile) -> Self {
        Self {
            lane: Mutex::new(RateLimiter::new(shape.bytes_per_s())),
            carried_bytes: Mutex::default(),
            conditions: Mutex::new((LinkConditions::FAIR, 0)),
            shape,
        }
    }

    /// Returns the number of bytes delivered.
    pub(crate) fn carried_bytes(&self) -> u64 {
        *self.carried_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the conditions from now on.
    pub(crate) fn set(&self, conditions: LinkConditions) {
        self.conditions.lock().unwrap_or_else(PoisonError::into_inner).0 = conditions;
        let rate = conditions.bytes_per_s().or(self.shape.bytes_per_s());
        self.lane.lock().unwrap_or_else(PoisonError::into_inner).set_rate(rate);
    }

    /// Sleeps while the link is cut.
    fn wait_while_cut(&self) {
        while self.conditions.lock().unwrap_or_else(PoisonError::into_inner).0.cut {
            thread::sleep(POLL);
        }
    }

    /// Returns the extra delay of a piece of `bytes` bytes.
    fn later(&self, bytes: usize) -> Duration {
        let mut conditions = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        conditions.1 += 1;
        // The fractions of multiples of the golden ratio are spread as evenly as possible.
        let chance = (conditions.1 as f64 * 0.618_033_988_749_894_9).fract();
        conditions.0.later(bytes, chance, self.shape.one_way())
    }

    /// Sleeps until the rate limiter accepts more bytes.
    fn wait(&self, opened: Instant) {
        self.wait_while_cut();
        loop {
            let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match lane.wait(opened.elapsed(), AHEAD) {
                Duration::ZERO => return,
                wait => thread::sleep(wait),
            }
        }
    }

    /// Puts `bytes` on the wire. Returns the time when the last of them leaves this end.
    fn put(&self, opened: Instant, bytes: usize) -> Duration {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner).put(opened.elapsed(), bytes)
    }

    fn arrived(&self, bytes: usize) {
        *self.carried_bytes.lock().unwrap_or_else(PoisonError::into_inner) += bytes as u64;
    }
}

/// Two ends of a connection.
pub(crate) struct ConnectionEnds {
    /// Socket to the connecting peer.
    pub(crate) near: TcpStream,
    /// Socket to the destination.
    pub(crate) far: TcpStream,
}

impl ConnectionEnds {
    /// Breaks the connection in both directions.
    pub(crate) fn shut(&self) {
        // Fails only if the connection is already broken.
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

/// Forwards bytes between both ends until both have ended or one has failed. `opened` is the time when the link was
/// opened.
pub(crate) fn carry(
    ends: &ConnectionEnds,
    up: &LinkDirection,
    down: &LinkDirection,
    shape: LinkProfile,
    opened: Instant,
) {
    let accepted = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Models the handshake, which the system has done without the link.
            thread::sleep(shape.round_trip().saturating_sub(accepted.elapsed()));
            one_way(&ends.near, &ends.far, up, shape, opened, ends);
        });
        one_way(&ends.far, &ends.near, down, shape, opened, ends);
    });
}

fn one_way(
    from: &TcpStream,
    to: &TcpStream,
    way: &LinkDirection,
    shape: LinkProfile,
    opened: Instant,
    ends: &ConnectionEnds,
) {
    let flight = Flight::new(shape.flight_bytes_max());
    thread::scope(|scope| {
        scope.spawn(|| {
            if take_in(from, &flight, way, shape, opened).is_err() {
                ends.shut();
            }
            flight.close();
        });
        if deliver(to, &flight, way, opened).is_err() {
            ends.shut();
        }
        flight.close();
    });
}

/// Reads until the end of the stream, no faster than the rate limiter accepts bytes.
fn take_in(
    mut from: &TcpStream,
    flight: &Flight,
    way: &LinkDirection,
    shape: LinkProfile,
    opened: Instant,
) -> io::Result<()> {
    let mut buffer = vec![0; shape.chunk_bytes()];
    loop {
        way.wait(opened);
        let bytes = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let arrives = way.put(opened, bytes) + shape.one_way() + way.later(bytes);
        if !flight.push((arrives, buffer[..bytes].to_vec())) {
            return Ok(());
        }
    }
}

/// Writes each piece at its arrival time, and passes on the end of the stream.
fn deliver(mut to: &TcpStream, flight: &Flight, way: &LinkDirection, opened: Instant) -> io::Result<()> {
    while let Some((arrives, bytes)) = flight.pop() {
        thread::sleep(arrives.saturating_sub(opened.elapsed()));
        way.wait_while_cut();
        to.write_all(&bytes)?;
        way.arrived(bytes.len());
    }
    to.shutdown(Shutdown::Write)
}

/// Longest wait for the destination to accept a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Payload bytes of a packet, as on most links. On loopback it would be 64 KiB, and systems would give sockets at both
/// ends buffers of several megabytes. Seconds of data on a slow link would wait there unnoticed.
#[cfg(unix)]
const PACKET_BYTES: u32 = 1_460;

/// Opens a listener on a free local port; its connections have buffers of `buffer_bytes`.
pub(crate) fn listen(buffer_bytes: usize) -> io::Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = socket(address, buffer_bytes)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connects to `address` with buffers of `buffer_bytes`.
pub(crate) fn connect(address: SocketAddr, buffer_bytes: usize) -> io::Result<TcpStream> {
    let socket = socket(address, buffer_bytes)?;
    socket.connect_timeout(&address.into(), CONNECT_WAIT)?;
    Ok(socket.into())
}

/// Creates a socket. Buffer sizes must be set before the connection, because the handshake negotiates them.
fn socket(address: SocketAddr, buffer_bytes: usize) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_recv_buffer_size(buffer_bytes)?;
    socket.set_send_buffer_size(buffer_bytes)?;
    #[cfg(unix)]
    socket.set_tcp_mss(PACKET_BYTES)?;
    Ok(socket)
}
