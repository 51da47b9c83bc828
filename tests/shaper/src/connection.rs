//! One connection through the link, with a reading and a writing thread in each direction.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::flight::Flight;
use crate::lane::Lane;
use crate::shape::{AHEAD, Shape};
use crate::weather::Weather;

/// Interval of the checks while a direction is cut.
const POLL: Duration = Duration::from_millis(10);

/// One direction of a link, shared by its connections.
pub(crate) struct Way {
    lane: Mutex<Lane>,
    carried_bytes: Mutex<u64>,
    /// Current conditions, and the number of pieces sent so far.
    weather: Mutex<(Weather, u64)>,
    shape: Shape,
}

impl Way {
    /// Creates one direction of a link of `shape`.
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            lane: Mutex::new(Lane::new(shape.bytes_per_s())),
            carried_bytes: Mutex::default(),
            weather: Mutex::new((Weather::FAIR, 0)),
            shape,
        }
    }

    /// Returns the number of bytes delivered.
    pub(crate) fn carried_bytes(&self) -> u64 {
        *self.carried_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the conditions from now on.
    pub(crate) fn set(&self, weather: Weather) {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner).0 = weather;
        let rate = weather.bytes_per_s().or(self.shape.bytes_per_s());
        self.lane.lock().unwrap_or_else(PoisonError::into_inner).set_rate(rate);
    }

    /// Sleeps while the link is cut.
    fn wait_while_cut(&self) {
        while self.weather.lock().unwrap_or_else(PoisonError::into_inner).0.cut {
            thread::sleep(POLL);
        }
    }

    /// Returns the extra delay of a piece of `bytes` bytes.
    fn later(&self, bytes: usize) -> Duration {
        let mut weather = self.weather.lock().unwrap_or_else(PoisonError::into_inner);
        weather.1 += 1;
        // The fractions of multiples of the golden ratio are spread as evenly as possible.
        let chance = (weather.1 as f64 * 0.618_033_988_749_894_9).fract();
        weather.0.later(bytes, chance, self.shape.one_way())
    }

    /// Sleeps until the lane accepts more bytes.
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
pub(crate) struct Ends {
    /// Socket to the connecting peer.
    pub(crate) near: TcpStream,
    /// Socket to the destination.
    pub(crate) far: TcpStream,
}

impl Ends {
    /// Breaks the connection in both directions.
    pub(crate) fn shut(&self) {
        // Fails only if the connection is already broken.
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

/// Forwards bytes between both ends until both have ended or one has failed. `opened` is the time when the link was
/// opened.
pub(crate) fn carry(ends: &Ends, up: &Way, down: &Way, shape: Shape, opened: Instant) {
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

fn one_way(from: &TcpStream, to: &TcpStream, way: &Way, shape: Shape, opened: Instant, ends: &Ends) {
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

/// Reads until the end of the stream, no faster than the lane accepts bytes.
fn take_in(
    mut from: &TcpStream,
    flight: &Flight,
    way: &Way,
    shape: Shape,
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
fn deliver(mut to: &TcpStream, flight: &Flight, way: &Way, opened: Instant) -> io::Result<()> {
    while let Some((arrives, bytes)) = flight.pop() {
        thread::sleep(arrives.saturating_sub(opened.elapsed()));
        way.wait_while_cut();
        to.write_all(&bytes)?;
        way.arrived(bytes.len());
    }
    to.shutdown(Shutdown::Write)
}
