//! Origins of connections and requests, by which limits count them.

use std::net::{IpAddr, Ipv6Addr};

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
