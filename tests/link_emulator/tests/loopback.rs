//! Tests of links over real local sockets. They check delivery, not time.

#![expect(clippy::unwrap_used, reason = "tests; the helpers of one too")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use archipelago_link_emulator::{EmulatedLink, LinkBytes, LinkConditions, LinkProfile};

/// Longest wait for anything that must come.
const WAIT: Duration = Duration::from_secs(60);

/// Opens a port, and returns a channel with the connections that it accepts.
fn server() -> (SocketAddr, Receiver<TcpStream>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, connections) = mpsc::channel();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_read_timeout(Some(WAIT)).unwrap();
            if accepted.send(stream).is_err() {
                return;
            }
        }
    });
    (address, connections)
}

fn connect(link: &EmulatedLink) -> TcpStream {
    let stream = TcpStream::connect(link.address()).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream.set_write_timeout(Some(WAIT)).unwrap();
    stream
}

/// Returns bytes that identify their positions.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Writes `bytes` and closes that direction, while reading to the end.
fn exchange(stream: &TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = stream;
            stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write)).unwrap();
        });
        let (mut stream, mut came) = (stream, Vec::new());
        stream.read_to_end(&mut came).map(|_| came)
    })
}

#[test]
fn every_byte_arrives_on_its_own_connection_both_ways() {
    let shape = LinkProfile::new(Some(200.0), Duration::from_millis(10));
    let (address, connections) = server();
    let link = EmulatedLink::open(address, shape).unwrap();
    let sizes = [1_000_003, 70_001, 1];
    thread::scope(|scope| {
        for (seed, bytes) in (0..).zip(sizes) {
            let near = connect(&link);
            // One after another, so that the two ends can be matched.
            let far = connections.recv_timeout(WAIT).unwrap();
            scope.spawn(move || {
                assert!(exchange(&near, &pattern(seed, bytes)).unwrap() == pattern(seed + 100, 2 * bytes));
            });
            scope.spawn(move || {
                assert!(exchange(&far, &pattern(seed + 100, 2 * bytes)).unwrap() == pattern(seed, bytes));
            });
        }
    });
    let up_bytes = sizes.iter().sum::<usize>() as u64;
    assert_eq!(link.carried(), LinkBytes { up_bytes, down_bytes: 2 * up_bytes });
}

#[test]
fn a_slow_reader_blocks_the_writer() {
    let (address, connections) = server();
    let link = EmulatedLink::open(address, LinkProfile::new(Some(100.0), Duration::ZERO)).unwrap();
    let mut near = connect(&link);
    near.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let _unread = connections.recv_timeout(WAIT).unwrap();
    let mut taken = 0;
    loop {
        match near.write(&[0; 16_384]) {
            Ok(bytes) => taken += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < 32 << 20, "{taken} bytes are taken, and nobody reads");
    }
    assert!(taken > 0);
}

#[test]
fn a_connection_to_an_unreachable_destination_ends() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let link = EmulatedLink::open(free, LinkProfile::new(None, Duration::ZERO)).unwrap();
    assert!(ended(connect(&link)));
}

#[test]
fn closing_the_link_breaks_what_goes_through_it() {
    let (address, connections) = server();
    let link = EmulatedLink::open(address, LinkProfile::new(None, Duration::ZERO)).unwrap();
    let near = connect(&link);
    let far = connections.recv_timeout(WAIT).unwrap();
    let place = link.address();
    drop(link);
    assert!(ended(near) && ended(far));
    assert!(TcpStream::connect(place).is_err());
}

#[test]
fn bytes_sent_into_a_cut_arrive_after_it() {
    let (address, connections) = server();
    let link = EmulatedLink::open(address, LinkProfile::new(None, Duration::ZERO)).unwrap();
    let mut near = connect(&link);
    let mut far = connections.recv_timeout(WAIT).unwrap();
    near.write_all(b"before").unwrap();
    let mut came = [0; 6];
    far.read_exact(&mut came).unwrap();
    link.set(LinkConditions { cut: true, ..LinkConditions::FAIR });
    near.write_all(b"within").unwrap();
    far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let error = far.read(&mut came).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    far.set_read_timeout(Some(WAIT)).unwrap();
    // Loss, delay and a low rate change when bytes arrive, not which bytes.
    let rain =
        LinkConditions { cut: false, delay: Duration::from_millis(20), mbit_per_s: Some(50.0), lost: 0.05 };
    link.set(rain);
    far.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"within");
    thread::scope(|scope| {
        scope.spawn(|| assert!(exchange(&near, &pattern(1, 50_000)).unwrap() == pattern(2, 30_000)));
        assert!(exchange(&far, &pattern(2, 30_000)).unwrap() == pattern(1, 50_000));
    });
}

#[test]
fn a_link_that_is_cut_can_be_closed() {
    let (address, connections) = server();
    let link = EmulatedLink::open(address, LinkProfile::new(None, Duration::ZERO)).unwrap();
    let near = connect(&link);
    let far = connections.recv_timeout(WAIT).unwrap();
    link.set(LinkConditions { cut: true, ..LinkConditions::FAIR });
    drop(link);
    assert!(ended(near) && ended(far));
}

/// Returns true if the peer has ended the connection, cleanly or not.
fn ended(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}
