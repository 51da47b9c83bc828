//! Link between a machine and the syncer: in each direction, all traffic shares one rate.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Rng;
use super::trace::ParcelContent;
use archipelago_core::wire::{ConnId, Millis};

/// Properties of the link between one machine and the syncer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSpec {
    /// One-way latency, in milliseconds.
    pub latency_ms: u64,
    /// Maximum random addition to a message's latency, in milliseconds. Messages of one connection stay in order; those
    /// of different connections may overtake each other.
    pub jitter_ms: u64,
    /// Rate of each direction in bytes per second, shared by all traffic; `None` is unlimited.
    pub bytes_per_s: Option<u64>,
    /// Probability that a transmission is lost, 0 to 1. Lost data is retransmitted, as in TCP: it arrives later, and so
    /// do all later messages of the connection.
    pub loss: f64,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self { latency_ms: 20, jitter_ms: 10, bytes_per_s: None, loss: 0.0 }
    }
}

/// Minimum retransmission timeout, in milliseconds. RFC 6298 has 1 s, Linux 200 ms.
const RESEND_MS_MIN: u64 = 200;
/// Maximum number of successive losses of one message. More would break a connection.
const LOSSES_MAX: u32 = 6;
/// Minimum size of a piece of an HTTP response that shares the link with the socket, in bytes: a TCP segment.
const PIECE_BYTES_MIN: u64 = 1_460;
/// Transmission time of a piece of an HTTP response, in milliseconds, if it is larger than the minimum size.
const PIECE_MS: u64 = 20;

impl LinkSpec {
    /// Draws the time from the end of a message's transmission to its arrival, in milliseconds. The timeout of a
    /// retransmission doubles with each loss.
    fn travel_ms(&self, rng: &mut Rng) -> u64 {
        let travel_ms = self.latency_ms + rng.between(0, self.jitter_ms);
        if self.loss <= 0.0 {
            return travel_ms;
        }
        let losses = (0..LOSSES_MAX).take_while(|_| rng.chance(self.loss)).count();
        travel_ms + (2 * self.latency_ms).max(RESEND_MS_MIN) * ((1 << losses) - 1)
    }

    /// Returns the transmission time of `bytes` bytes, in microseconds.
    fn send_us(&self, bytes: u64) -> u64 {
        self.bytes_per_s.map_or(0, |rate| bytes.saturating_mul(1_000_000) / rate.max(1))
    }

    fn piece_bytes(&self) -> u64 {
        self.bytes_per_s.map_or(u64::MAX, |rate| (rate * PIECE_MS / 1_000).max(PIECE_BYTES_MIN))
    }
}

/// Direction of a link: up is from the machine to the syncer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkDirection {
    Up,
    Down,
}

/// Priority of a packet, and the connection type whose share of the link it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Control message on the socket. It is sent before all queued bulk messages.
    Control,
    /// Message with parameters on the socket.
    Bulk,
    /// HTTP request or response on a separate connection. While the socket has traffic, HTTP gets half of the link.
    Http,
}

/// Packet to be sent, with the event at its arrival.
#[derive(Debug)]
pub(super) struct Packet<T> {
    pub(super) class: Class,
    /// Connection of a message on the socket.
    pub(super) conn: Option<ConnId>,
    /// Size on the link, in bytes.
    pub(super) bytes: u64,
    pub(super) carries: T,
    /// Content for traces, if tracing is on.
    pub(super) content: Option<Box<ParcelContent>>,
}

/// Result of a transmission.
#[derive(Debug)]
pub(super) enum Delivery<T> {
    /// The transmission of a packet began. It will arrive at `until`, unless the link is cut.
    Began { until: Millis, content: Box<ParcelContent> },
    /// A packet was sent and will arrive at `arrives`.
    Sent { arrives: Millis, carries: T },
}

/// One direction of a link: a sender of one packet at a time, with its queues.
#[derive(Debug)]
pub(super) struct LinkQueue<T> {
    spec: LinkSpec,
    control: VecDeque<Packet<T>>,
    bulk: VecDeque<Packet<T>>,
    /// Queued HTTP packets with the number of bytes not yet sent. The first may be partly sent.
    http: VecDeque<(Packet<T>, u64)>,
    sending: Option<Transmission<T>>,
    /// Bytes that the socket has sent more than HTTP since both began to compete for the link.
    lead_bytes: i64,
    /// Time from which the sender has been free, in microseconds.
    free_us: u64,
    /// Latest arrival time of socket packets and of HTTP packets. Later packets of the same type do not arrive before
    /// it.
    arrived: [Millis; 2],
}

#[derive(Debug)]
struct Transmission<T> {
    /// Whole message with its travel time in milliseconds; `None` for a piece of the first HTTP packet.
    message: Option<(Packet<T>, u64)>,
    done_us: u64,
}

impl<T> LinkQueue<T> {
    pub(super) fn new(spec: LinkSpec) -> Self {
        Self {
            spec,
            control: VecDeque::new(),
            bulk: VecDeque::new(),
            http: VecDeque::new(),
            sending: None,
            lead_bytes: 0,
            free_us: 0,
            arrived: [Millis(0); 2],
        }
    }

    /// Queues a packet. [`Self::pump`] sends it.
    pub(super) fn enqueue(&mut self, packet: Packet<T>) {
        match packet.class {
            Class::Control => self.control.push_back(packet),
            Class::Bulk => self.bulk.push_back(packet),
            Class::Http => {
                let bytes = packet.bytes;
                self.http.push_back((packet, bytes));
            }
        }
    }

    /// Sends the packets that are due by `now`. Returns the results and, if a transmission is in progress, the time of
    /// the next call.
    pub(super) fn pump(&mut self, now: Millis, rng: &mut Rng) -> (Vec<Delivery<T>>, Option<Millis>) {
        let (now_us, mut deliveries) = (now.0.saturating_mul(1_000), Vec::new());
        loop {
            match self.sending.take_if(|sending| sending.done_us <= now_us) {
                Some(mut done) => {
                    // A late call means that the link was cut in the meantime.
                    done.done_us = done.done_us.max(now_us.saturating_sub(999));
                    self.finish(done, rng, &mut deliveries);
                }
                None => self.free_us = self.free_us.max(if self.sending.is_none() { now_us } else { 0 }),
            }
            if let Some(sending) = &self.sending {
                return (deliveries, Some(Millis(sending.done_us.div_ceil(1_000))));
            }
            if !self.begin(rng, &mut deliveries) {
                return (deliveries, None);
            }
        }
    }

    /// Returns the number of bytes queued on the socket, without the transmission in progress.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.control.iter().chain(&self.bulk).map(|packet| packet.bytes).sum()
    }

    /// Returns the numbers of queued control and bulk messages, without the transmission in progress.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.control.len(), self.bulk.len())
    }

    /// Returns true if no message of `conn` is queued or in transmission.
    pub(super) fn is_clear_of(&self, conn: ConnId) -> bool {
        let of = |packet: &Packet<T>| packet.conn == Some(conn);
        let sending = self.sending.as_ref().and_then(|sending| sending.message.as_ref());
        !self.control.iter().chain(&self.bulk).any(of) && !sending.is_some_and(|(packet, _)| of(packet))
    }

    /// Drops the queued messages of `conn`: all of them if `all`, otherwise only bulk messages.
    pub(super) fn forget(&mut self, conn: ConnId, all: bool) {
        let other = |packet: &Packet<T>| packet.conn != Some(conn);
        self.bulk.retain(other);
        if all {
            self.control.retain(other);
        }
    }

    /// Begins a new connection, whose messages need not wait for those of the previous one.
    pub(super) fn begin_stream(&mut self) {
        self.arrived[0] = Millis(0);
    }

    /// Begins the next transmission. Returns false if the queues are empty.
    fn begin(&mut self, rng: &mut Rng, deliveries: &mut Vec<Delivery<T>>) -> bool {
        let socket = !self.control.is_empty() || !self.bulk.is_empty();
        let contended = socket && !self.http.is_empty();
        if !contended {
            self.lead_bytes = 0;
        }
        // The difference of bytes is small, because queues are short, so the cast does not overflow.
        if socket && self.lead_bytes <= 0 {
            let Some(mut packet) = self.control.pop_front().or_else(|| self.bulk.pop_front()) else {
                return false;
            };
            if contended {
                self.lead_bytes += packet.bytes as i64;
            }
            let done_us = self.free_us + self.spec.send_us(packet.bytes);
            let travel_ms = self.spec.travel_ms(rng);
            self.trace_start(&mut packet, done_us, travel_ms, deliveries);
            self.sending = Some(Transmission { message: Some((packet, travel_ms)), done_us });
        } else if let Some((mut packet, left)) = self.http.pop_front() {
            let piece = left.min(self.spec.piece_bytes());
            if contended {
                self.lead_bytes -= piece as i64;
            }
            if left == packet.bytes {
                let done_us = self.free_us + self.spec.send_us(packet.bytes);
                self.trace_start(&mut packet, done_us, self.spec.latency_ms, deliveries);
            }
            let done_us = self.free_us + self.spec.send_us(piece);
            self.http.push_front((packet, left - piece));
            self.sending = Some(Transmission { message: None, done_us });
        } else {
            return false;
        }
        true
    }

    fn finish(&mut self, done: Transmission<T>, rng: &mut Rng, deliveries: &mut Vec<Delivery<T>>) {
        self.free_us = done.done_us;
        let (packet, travel_ms) = match done.message {
            Some(sent) => sent,
            None => match self.http.pop_front_if(|(_, left)| *left == 0) {
                Some((packet, _)) => (packet, self.spec.travel_ms(rng)),
                None => return,
            },
        };
        let arrived = &mut self.arrived[usize::from(packet.class == Class::Http)];
        let arrives = Millis(done.done_us.div_ceil(1_000)).after(travel_ms).max(*arrived);
        *arrived = arrives;
        deliveries.push(Delivery::Sent { arrives, carries: packet.carries });
    }

    /// Adds the start of a packet's transmission to the results, if the packet is traced.
    fn trace_start(
        &self,
        packet: &mut Packet<T>,
        done_us: u64,
        travel_ms: u64,
        deliveries: &mut Vec<Delivery<T>>,
    ) {
        let arrived = self.arrived[usize::from(packet.class == Class::Http)];
        let until = Millis(done_us.div_ceil(1_000)).after(travel_ms).max(arrived);
        deliveries.extend(packet.content.take().map(|content| Delivery::Began { until, content }));
    }
}

/// Link with its traffic in both directions.
#[derive(Debug)]
pub(super) struct DuplexLink<T> {
    spec: LinkSpec,
    up: LinkQueue<T>,
    down: LinkQueue<T>,
}

impl<T> DuplexLink<T> {
    pub(super) fn new(spec: LinkSpec) -> Self {
        Self { spec, up: LinkQueue::new(spec), down: LinkQueue::new(spec) }
    }

    pub(super) fn lane(&mut self, way: LinkDirection) -> &mut LinkQueue<T> {
        match way {
            LinkDirection::Up => &mut self.up,
            LinkDirection::Down => &mut self.down,
        }
    }

    pub(super) fn latency_ms(&self) -> u64 {
        self.spec.latency_ms
    }

    /// Sets the one-way latency of everything sent from now on. Traffic in transit arrives as planned, before later
    /// traffic.
    pub(super) fn set_latency_ms(&mut self, latency_ms: u64) {
        self.set(LinkSpec { latency_ms, ..self.spec });
    }

    /// Sets the properties for everything sent from now on. Traffic in transit arrives as planned, before later
    /// traffic.
    pub(super) fn set(&mut self, spec: LinkSpec) {
        (self.spec, self.up.spec, self.down.spec) = (spec, spec, spec);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a packet with an identifying number.
    fn packet(class: Class, bytes: u64, number: u64) -> Packet<u64> {
        Packet { class, bytes, conn: Some(ConnId(number)), carries: number, content: None }
    }

    /// Sends everything that is queued. Returns number and arrival time of each packet, in sending order.
    fn drain(lane: &mut LinkQueue<u64>, mut now: Millis, rng: &mut Rng) -> Vec<(u64, u64)> {
        let mut sent = Vec::new();
        loop {
            let (deliveries, next) = lane.pump(now, rng);
            sent.extend(deliveries.into_iter().filter_map(|delivery| match delivery {
                Delivery::Sent { arrives, carries } => Some((carries, arrives.0)),
                Delivery::Began { .. } => None,
            }));
            match next {
                Some(at) => now = at,
                None => return sent,
            }
        }
    }

    fn lane(bytes_per_s: Option<u64>, jitter_ms: u64) -> LinkQueue<u64> {
        LinkQueue::new(LinkSpec { latency_ms: 10, jitter_ms, bytes_per_s, loss: 0.0 })
    }

    /// Goal: all traffic shares one rate, so packets sent together take as long as their sum.
    #[test]
    fn the_rate_is_shared() {
        let (mut lane, mut rng) = (lane(Some(1_000), 0), Rng::new(1));
        for (number, class) in [(1, Class::Bulk), (2, Class::Control), (3, Class::Http), (4, Class::Bulk)] {
            lane.enqueue(packet(class, 500, number));
        }
        let last = drain(&mut lane, Millis(0), &mut rng).into_iter().map(|(_, at)| at).max();
        assert_eq!(last, Some(2_010));
    }

    /// Goal: a control message overtakes queued bulk messages, but not the transmission in progress.
    #[test]
    fn control_overtakes_queued_bulk() {
        let (mut lane, mut rng) = (lane(Some(1_000), 0), Rng::new(1));
        lane.enqueue(packet(Class::Bulk, 100, 1));
        lane.enqueue(packet(Class::Bulk, 100, 2));
        assert_eq!(lane.pump(Millis(0), &mut rng).1, Some(Millis(100)));
        lane.enqueue(packet(Class::Control, 10, 3));
        assert_eq!((lane.waiting(), lane.waiting_bytes()), ((1, 1), 110));
        assert_eq!(drain(&mut lane, Millis(100), &mut rng), [(1, 110), (3, 120), (2, 220)]);
    }

    /// Goal: an HTTP response and the socket get half of the link each while both have traffic, in either order of
    /// arrival.
    #[test]
    fn http_shares_with_the_socket() {
        let (mut lane, mut rng) = (lane(Some(10_000), 0), Rng::new(1));
        lane.enqueue(packet(Class::Http, 20_000, 0));
        for number in 1..=10 {
            lane.enqueue(packet(Class::Bulk, 1_000, number));
        }
        let sent = drain(&mut lane, Millis(0), &mut rng);
        let socket = sent.iter().rfind(|(number, _)| *number > 0).expect("ten messages").1;
        // The socket's own 10 kB and as much of HTTP.
        assert!((1_850..=2_150).contains(&socket), "{sent:?}");
        assert_eq!(sent.last(), Some(&(0, 3_010)));
    }

    /// Goal: jitter never reorders the messages of one connection, and a new connection does not wait for the previous
    /// one.
    #[test]
    fn messages_of_one_connection_stay_in_order() {
        let (mut lane, mut rng) = (lane(None, 50), Rng::new(3));
        let mut last = Millis(0);
        for number in 0..100 {
            lane.enqueue(packet(if number % 2 == 0 { Class::Bulk } else { Class::Control }, 1, number));
            let (deliveries, next) = lane.pump(Millis(number), &mut rng);
            let ([Delivery::Sent { arrives, .. }], None) = (&deliveries[..], next) else {
                panic!("{deliveries:?}")
            };
            assert!(*arrives >= last, "{arrives} after {last}");
            last = *arrives;
        }
        lane.arrived[0] = Millis(100_000);
        lane.begin_stream();
        lane.enqueue(packet(Class::Control, 1, 0));
        assert!(drain(&mut lane, Millis(100), &mut rng)[0].1 <= 160);
    }

    /// Goal: traffic that a cut link delays is sent after the cut.
    #[test]
    fn nothing_arrives_in_the_past() {
        let (mut lane, mut rng) = (lane(Some(1_000), 0), Rng::new(1));
        lane.enqueue(packet(Class::Bulk, 100, 1));
        lane.enqueue(packet(Class::Bulk, 100, 2));
        lane.pump(Millis(0), &mut rng);
        assert_eq!(drain(&mut lane, Millis(5_000), &mut rng), [(1, 5_010), (2, 5_110)]);
    }

    #[test]
    fn forget_drops_queued_messages_of_one_connection() {
        let mut rng = Rng::new(1);
        let mut lane = lane(Some(1_000), 0);
        for class in [Class::Bulk, Class::Bulk, Class::Control] {
            lane.enqueue(packet(class, 100, 1));
        }
        lane.enqueue(packet(Class::Bulk, 100, 2));
        lane.pump(Millis(0), &mut rng);
        lane.forget(ConnId(1), false);
        assert!(!lane.is_clear_of(ConnId(1)), "one is being sent");
        assert_eq!(drain(&mut lane, Millis(100), &mut rng), [(1, 110), (2, 210)]);
        lane.enqueue(packet(Class::Control, 100, 1));
        lane.forget(ConnId(1), true);
        assert!(lane.is_clear_of(ConnId(1)) && drain(&mut lane, Millis(200), &mut rng).is_empty());
    }

    #[test]
    fn lost_transmission_arrives_after_retransmission() {
        let spec = LinkSpec { latency_ms: 10, jitter_ms: 0, bytes_per_s: None, loss: 0.5 };
        let mut rng = Rng::new(1);
        let mut travel = |loss| LinkSpec { loss, ..spec }.travel_ms(&mut rng);
        let late: Vec<u64> = (0..1_000).map(|_| travel(0.5)).filter(|&ms| ms != 10).collect();
        assert!((450..550).contains(&late.len()), "{}", late.len());
        assert!(late.iter().all(|at| [210, 610, 1_410, 3_010, 6_210, 12_610].contains(at)), "{late:?}");
        assert_eq!(travel(1.0), 12_610, "in the end it comes");
        assert_eq!(travel(0.0), 10);
    }
}
