//! Limits on simultaneous connections: in total, per address, and by the system's limit on open files and sockets.

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

/// Counter of open connections with its limits. Cheap to clone; all clones share the counts.
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
    /// Counts by address. Counts of 0 are removed, so there are never more entries than counted connections.
    by_address: BTreeMap<IpAddr, u32>,
}

impl ConnectionLimits {
    /// Creates a counter that allows `all_max` connections in total and `address_max` per address.
    pub fn new(all_max: u32, address_max: u32) -> Self {
        let pending = Arc::new(Pending::new(all_max));
        Self { open: Arc::default(), guesses: Arc::default(), pending, all_max, address_max }
    }

    /// Counts a connection from `address` until the returned value is dropped. Connections from this machine and from a
    /// trusted proxy (`is_trusted_proxy`) count only towards the total, because many peers share their address.
    ///
    /// # Errors
    /// [`Full`]: a limit is reached.
    pub fn acquire(&self, address: IpAddr, is_trusted_proxy: bool) -> Result<ConnectionGuard, Full> {
        let who = match Origin::at(address) {
            Origin::Address(_) if is_trusted_proxy => Origin::Proxy,
            who => who,
        };
        let mut open = self.open();
        if open.all >= self.all_max {
            return Err(Full::All);
        }
        self.count_in(&mut open, who)?;
        open.all += 1;
        Ok(ConnectionGuard { limits: self.clone(), who, is_forwarded: false })
    }

    /// Counts one request of a client at `address` behind a trusted proxy until the returned value is dropped. It does
    /// not count towards the total, because the connection is the proxy's.
    ///
    /// # Errors
    /// [`Full::Address`]: the limit of the address is reached.
    pub fn acquire_forwarded(&self, address: IpAddr) -> Result<ConnectionGuard, Full> {
        let who = match Origin::at(address) {
            // A loopback address that a proxy names is on the proxy's machine, not on this one.
            Origin::Here => Origin::Proxy,
            who => who,
        };
        self.count_in(&mut self.open(), who)?;
        Ok(ConnectionGuard { limits: self.clone(), who, is_forwarded: true })
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

    /// Locks the counts. A panic cannot leave them inconsistent, so a poisoned lock is still valid.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counted connection, or a counted request through a proxy. Dropping it ends the count.
pub struct ConnectionGuard {
    limits: ConnectionLimits,
    who: Origin,
    is_forwarded: bool,
}

impl ConnectionGuard {
    /// Returns true if the connection comes from this machine.
    pub fn is_local(&self) -> bool {
        self.who == Origin::Here
    }

    /// Waits until a secret from this origin may be checked.
    ///
    /// # Errors
    /// [`TooMany`]: too many wrong secrets came from this origin, and others from it are being checked.
    pub async fn check(&self) -> Result<Check, TooMany> {
        self.limits.guesses.check(self.who).await
    }

    /// Returns the address of the peer, unless other peers share its origin.
    pub fn address(&self) -> Option<IpAddr> {
        self.who.address()
    }

    /// Registers a socket of this connection that belongs to no learner yet.
    pub fn open_socket(&self) -> Socket {
        Socket::open(&self.limits.pending, self.who)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.limits.open();
        if !self.is_forwarded {
            open.all -= 1;
        }
        let Some(who) = self.who.address() else { return };
        match open.by_address.get_mut(&who) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.by_address.remove(&who)),
        }
    }
}

/// Origin of a connection or request, for limits per origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// This machine.
    Here,
    /// A trusted proxy that names no client.
    Proxy,
    /// An IPv4 address, or the first 64 bits of an IPv6 address, because one household or rented machine can use any
    /// number of IPv6 addresses.
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

    /// Returns the address; `None` for origins that many peers share.
    pub(super) fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::Here | Self::Proxy => None,
        }
    }
}

/// File descriptors reserved for the run's own files, its pages, and the owner's access.
const RESERVED: u64 = 64;

/// Raises the limit as far as possible without privileges. Returns the new limit, or `None` if the system has no such
/// limit or does not report it.
#[must_use]
pub fn raise_descriptors() -> Option<u64> {
    platform::raise()
}

/// Returns the limit that [`raise_descriptors`] would set, or `None` if the system has no such limit or does not report
/// it.
#[must_use]
pub fn descriptor_limit() -> Option<u64> {
    platform::limit()
}

/// Returns the number of connections that fit under a limit of `descriptors` next to the run's own files: 1 to
/// `connections_max`.
#[must_use]
pub fn connections_within(descriptors: Option<u64>, connections_max: u32) -> u32 {
    let room = descriptors.map_or(u64::from(connections_max), |most| most.saturating_sub(RESERVED).max(1));
    u32::try_from(room).unwrap_or(u32::MAX).min(connections_max)
}

#[cfg(unix)]
mod platform {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    pub fn raise() -> Option<u64> {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        if current == maximum {
            return current;
        }
        match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
            Ok(()) => maximum,
            Err(error) => {
                tracing::warn!(%error, ?current, "cannot raise the limit of open files and sockets");
                current
            }
        }
    }

    pub fn limit() -> Option<u64> {
        getrlimit(Resource::Nofile).maximum
    }
}

#[cfg(not(unix))]
mod platform {
    pub fn raise() -> Option<u64> {
        None
    }

    pub fn limit() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_cannot_take_all_connections() {
        let limits = ConnectionLimits::new(5, 2);
        let places =
            ["192.0.2.1", "::ffff:192.0.2.1"].map(|address| limits.acquire(ip(address), false).unwrap());
        assert_eq!(limits.acquire(ip("192.0.2.1"), false).err(), Some(Full::Address));
        let other = limits.acquire(ip("192.0.2.2"), false).unwrap();
        drop(places);
        assert!(limits.acquire(ip("192.0.2.1"), false).is_ok());
        drop(other);
        assert_eq!(limits.count(), 0);
        assert!(limits.open().by_address.is_empty());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let limits = ConnectionLimits::new(9, 2);
        let _places =
            ["2001:db8::1", "2001:db8::2"].map(|address| limits.acquire(ip(address), false).unwrap());
        assert_eq!(limits.acquire(ip("2001:db8::ffff:3"), false).err(), Some(Full::Address));
        assert!(limits.acquire(ip("2001:db8:0:1::1"), false).is_ok());
    }

    #[test]
    fn this_machine_counts_only_towards_the_total() {
        let limits = ConnectionLimits::new(3, 1);
        let _places =
            ["127.0.0.1", "127.0.0.1", "::1"].map(|address| limits.acquire(ip(address), false).unwrap());
        assert_eq!(limits.acquire(ip("192.0.2.1"), false).err(), Some(Full::All));
    }

    #[test]
    fn a_proxy_counts_towards_the_total_and_its_clients_by_address() {
        let limits = ConnectionLimits::new(2, 1);
        let proxies = ["192.0.2.1", "192.0.2.1"].map(|address| limits.acquire(ip(address), true).unwrap());
        assert_eq!(limits.acquire(ip("192.0.2.1"), true).err(), Some(Full::All));
        let forwarded = limits.acquire_forwarded(ip("198.51.100.7")).unwrap();
        assert_eq!(limits.acquire_forwarded(ip("198.51.100.7")).err(), Some(Full::Address));
        assert_eq!(limits.count(), 2, "its connection is the proxy's");
        drop((forwarded, proxies));
        assert_eq!((limits.count(), limits.open().by_address.len()), (0, 0));
        // A proxy cannot make a client appear local.
        let [own, forwarded] =
            [limits.acquire(ip("127.0.0.1"), true), limits.acquire_forwarded(ip("127.0.0.1"))]
                .map(Result::unwrap);
        assert_eq!((own.is_local(), forwarded.is_local(), forwarded.who), (true, false, Origin::Proxy));
    }

    #[test]
    fn the_run_keeps_some_of_what_the_system_allows() {
        assert_eq!(connections_within(Some(1_024), 8_192), 960);
        assert_eq!(connections_within(Some(1 << 20), 8_192), 8_192);
        assert_eq!(connections_within(None, 8_192), 8_192);
        // `doctor` warns about so low a limit. The program still serves one connection.
        assert_eq!(connections_within(Some(10), 8_192), 1);
    }
}
