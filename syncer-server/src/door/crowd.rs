//! Connections at once, in all and from one address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::guess::Guesses;

/// Why a connection is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many as there may be in all.
    All,
    /// As many as one address may have.
    Address,
}

/// Counts connections. Cheap to clone; all clones count together.
#[derive(Clone)]
pub struct Crowd {
    open: Arc<Mutex<Open>>,
    guesses: Arc<Guesses>,
    all_max: u32,
    address_max: u32,
}

#[derive(Default)]
struct Open {
    all: u32,
    /// Only those who have one; never more than `all`.
    by_address: BTreeMap<IpAddr, u32>,
}

impl Crowd {
    /// At most `all_max` connections, and at most `address_max` from one address.
    pub fn new(all_max: u32, address_max: u32) -> Self {
        Self { open: Arc::default(), guesses: Arc::default(), all_max, address_max }
    }

    /// A place for a connection from `address`, until it is dropped. This machine itself is counted in all alone: a
    /// proxy here brings everybody from one address.
    ///
    /// # Errors
    /// [`Full`]: there is none.
    pub fn enter(&self, address: IpAddr) -> Result<Place, Full> {
        let who = place_of(address);
        let mut open = self.open();
        if open.all >= self.all_max {
            return Err(Full::All);
        }
        if let Some(who) = who {
            let count = open.by_address.get(&who).copied().unwrap_or(0);
            if count >= self.address_max {
                return Err(Full::Address);
            }
            open.by_address.insert(who, count + 1);
        }
        open.all += 1;
        Ok(Place { crowd: self.clone(), who })
    }

    /// Connections at once, at most.
    pub fn most(&self) -> u32 {
        self.all_max
    }

    /// Connections that are open.
    pub fn count(&self) -> u32 {
        self.open().all
    }

    /// Whoever panicked with the lock has left whole numbers.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection that is counted.
pub struct Place {
    crowd: Crowd,
    who: Option<IpAddr>,
}

impl Place {
    /// Whether it is from this machine itself.
    pub fn is_local(&self) -> bool {
        self.who.is_none()
    }

    /// How long its address must wait before it may show a secret again, if it showed too many that were wrong.
    pub fn guess_wait(&self) -> Option<Duration> {
        self.crowd.guesses.wait(self.who?, Instant::now())
    }

    /// A secret that it showed was wrong.
    pub fn guessed(&self) {
        self.crowd.guesses.note(self.who, Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.crowd.open();
        open.all -= 1;
        let Some(who) = self.who else { return };
        match open.by_address.get_mut(&who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.by_address.remove(&who)),
        }
    }
}

/// What one household or one rented machine connects from: an IPv4 address, or the first 64 bits of an IPv6 address,
/// of which each has as many as it likes. `None` is this machine.
fn place_of(address: IpAddr) -> Option<IpAddr> {
    let address = address.to_canonical();
    match address {
        _ if address.is_loopback() => None,
        IpAddr::V4(_) => Some(address),
        IpAddr::V6(v6) => Some(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_cannot_take_all_places() {
        let crowd = Crowd::new(5, 2);
        let places = ["192.0.2.1", "::ffff:192.0.2.1"].map(|address| crowd.enter(ip(address)).unwrap());
        assert_eq!(crowd.enter(ip("192.0.2.1")).err(), Some(Full::Address));
        let other = crowd.enter(ip("192.0.2.2")).unwrap();
        drop(places);
        assert!(crowd.enter(ip("192.0.2.1")).is_ok());
        drop(other);
        assert_eq!(crowd.count(), 0);
        assert!(crowd.open().by_address.is_empty());
    }

    #[test]
    fn a_network_is_one_address_however_many_it_has() {
        let crowd = Crowd::new(9, 2);
        let _places = ["2001:db8::1", "2001:db8::2"].map(|address| crowd.enter(ip(address)).unwrap());
        assert_eq!(crowd.enter(ip("2001:db8::ffff:3")).err(), Some(Full::Address));
        assert!(crowd.enter(ip("2001:db8:0:1::1")).is_ok());
    }

    #[test]
    fn this_machine_is_counted_in_all_alone() {
        let crowd = Crowd::new(3, 1);
        let _places = ["127.0.0.1", "127.0.0.1", "::1"].map(|address| crowd.enter(ip(address)).unwrap());
        assert_eq!(crowd.enter(ip("192.0.2.1")).err(), Some(Full::All));
    }
}
