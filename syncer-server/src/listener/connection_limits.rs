//! Limits on simultaneous connections, in all and from one address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::auth_throttle::{AuthThrottle, Check, TooMany};
use super::pending::{Pending, Socket};

/// Reasons to refuse a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The total limit is reached.
    All,
    /// The limit of the address is reached.
    Address,
}

/// Counter of connections. Cheap to clone; all clones share the count.
#[derive(Clone)]
pub struct ConnectionLimits {
    open: Arc<Mutex<Open>>,
    guesses: Arc<AuthThrottle>,
    pending: Arc<Pending>,
    all_max: u32,
    address_max: u32,
}

#[derive(Default)]
struct Open {
    all: u32,
    /// Addresses with a count of at least 1, so that there are never more entries than `all`.
    by_address: BTreeMap<IpAddr, u32>,
}

impl ConnectionLimits {
    /// Creates a counter for at most `all_max` connections, and at most `address_max` from one address.
    pub fn new(all_max: u32, address_max: u32) -> Self {
        let pending = Arc::new(Pending::new(all_max));
        Self { open: Arc::default(), guesses: Arc::default(), pending, all_max, address_max }
    }

    /// Takes a place for a connection from `address`; dropping the place frees it. Connections from this machine, and
    /// from a trusted proxy (`is_believed`), count only towards the total, because many peers share their address.
    ///
    /// # Errors
    /// [`Full`]: a limit is reached.
    pub fn enter(&self, address: IpAddr, is_believed: bool) -> Result<Place, Full> {
        let who = match Origin::at(address) {
            Origin::Address(_) if is_believed => Origin::Proxy,
            who => who,
        };
        let mut open = self.open();
        if open.all >= self.all_max {
            return Err(Full::All);
        }
        self.count_in(&mut open, who)?;
        open.all += 1;
        Ok(Place { crowd: self.clone(), who, is_brought: false })
    }

    /// Takes a place for one request of a client at `address` behind a trusted proxy. The connection itself is the
    /// proxy's.
    ///
    /// # Errors
    /// [`Full::Address`]: the limit of the address is reached.
    pub fn bring(&self, address: IpAddr) -> Result<Place, Full> {
        let who = match Origin::at(address) {
            // Loopback addresses named by a proxy are on its machine, not on this one.
            Origin::Here => Origin::Proxy,
            who => who,
        };
        self.count_in(&mut self.open(), who)?;
        Ok(Place { crowd: self.clone(), who, is_brought: true })
    }

    fn count_in(&self, open: &mut Open, who: Origin) -> Result<(), Full> {
        let Origin::Address(address) = who else { return Ok(()) };
        let count = open.by_address.get(&address).copied().unwrap_or(0);
        if count >= self.address_max {
            return Err(Full::Address);
        }
        open.by_address.insert(address, count + 1);
        Ok(())
    }

    /// Returns the maximum number of connections.
    pub fn most(&self) -> u32 {
        self.all_max
    }

    /// Returns the number of open connections.
    pub fn count(&self) -> u32 {
        self.open().all
    }

    /// A panic cannot leave the numbers inconsistent, so a poisoned lock is safe to use.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counted connection, or a counted request through a proxy.
pub struct Place {
    crowd: ConnectionLimits,
    who: Origin,
    is_brought: bool,
}

impl Place {
    /// Returns true if the connection comes from this machine.
    pub fn is_local(&self) -> bool {
        self.who == Origin::Here
    }

    /// Waits until a secret from this place may be checked.
    ///
    /// # Errors
    /// [`TooMany`]: too many wrong secrets came from this place, and others from it are being checked.
    pub async fn check(&self) -> Result<Check, TooMany> {
        self.crowd.guesses.check(self.who).await
    }

    /// Returns the address of this place, unless other peers share the place.
    pub fn address(&self) -> Option<IpAddr> {
        self.who.address()
    }

    /// Registers a socket from this place that belongs to no learner yet.
    pub fn open_socket(&self) -> Socket {
        Socket::open(&self.crowd.pending, self.who)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.crowd.open();
        if !self.is_brought {
            open.all -= 1;
        }
        let Some(who) = self.who.address() else { return };
        match open.by_address.get_mut(&who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.by_address.remove(&who)),
        }
    }
}

/// Origin of a connection or request, as limits count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// This machine.
    Here,
    /// A trusted proxy that names no client.
    Proxy,
    /// An IPv4 address, or the first 64 bits of an IPv6 address: one household or rented machine has as many IPv6
    /// addresses as it likes.
    Address(IpAddr),
}

impl Origin {
    /// Returns the origin of a connection from `address`.
    pub(super) fn at(address: IpAddr) -> Self {
        let address = address.to_canonical();
        match address {
            _ if address.is_loopback() => Self::Here,
            IpAddr::V4(_) => Self::Address(address),
            IpAddr::V6(v6) => Self::Address(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into()),
        }
    }

    /// Returns the address, if limits count by it.
    pub(super) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::Here | Self::Proxy => None,
        }
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
        let crowd = ConnectionLimits::new(5, 2);
        let places =
            ["192.0.2.1", "::ffff:192.0.2.1"].map(|address| crowd.enter(ip(address), false).unwrap());
        assert_eq!(crowd.enter(ip("192.0.2.1"), false).err(), Some(Full::Address));
        let other = crowd.enter(ip("192.0.2.2"), false).unwrap();
        drop(places);
        assert!(crowd.enter(ip("192.0.2.1"), false).is_ok());
        drop(other);
        assert_eq!(crowd.count(), 0);
        assert!(crowd.open().by_address.is_empty());
    }

    #[test]
    fn a_network_is_one_address_however_many_it_has() {
        let crowd = ConnectionLimits::new(9, 2);
        let _places = ["2001:db8::1", "2001:db8::2"].map(|address| crowd.enter(ip(address), false).unwrap());
        assert_eq!(crowd.enter(ip("2001:db8::ffff:3"), false).err(), Some(Full::Address));
        assert!(crowd.enter(ip("2001:db8:0:1::1"), false).is_ok());
    }

    #[test]
    fn this_machine_is_counted_in_all_alone() {
        let crowd = ConnectionLimits::new(3, 1);
        let _places =
            ["127.0.0.1", "127.0.0.1", "::1"].map(|address| crowd.enter(ip(address), false).unwrap());
        assert_eq!(crowd.enter(ip("192.0.2.1"), false).err(), Some(Full::All));
    }

    #[test]
    fn a_proxy_is_counted_in_all_alone_and_whom_it_brings_by_their_address() {
        let crowd = ConnectionLimits::new(2, 1);
        let proxies = ["192.0.2.1", "192.0.2.1"].map(|address| crowd.enter(ip(address), true).unwrap());
        assert_eq!(crowd.enter(ip("192.0.2.1"), true).err(), Some(Full::All));
        let brought = crowd.bring(ip("198.51.100.7")).unwrap();
        assert_eq!(crowd.bring(ip("198.51.100.7")).err(), Some(Full::Address));
        assert_eq!(crowd.count(), 2, "its connection is the proxy's");
        drop((brought, proxies));
        assert_eq!((crowd.count(), crowd.open().by_address.len()), (0, 0));
        // A proxy cannot make a client count as local.
        let [own, brought] =
            [crowd.enter(ip("127.0.0.1"), true), crowd.bring(ip("127.0.0.1"))].map(Result::unwrap);
        assert_eq!((own.is_local(), brought.is_local(), brought.who), (true, false, Origin::Proxy));
    }
}
