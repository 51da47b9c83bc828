//! Sockets with buffers too small to hide the link.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

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
