//! Check that a syncer can be reached.

use archipelago::run::Address;
use archipelago::run::identity::{IdentityLock, default_folder};
use archipelago_cli::plain;
use archipelago_core::wire::{CHUNK_BYTES, CloseCode, SUBPROTOCOL, http};
use archipelago_runtime::platform::{
    ByteCount, FetchReply, FetchRequest, Socket, SocketEvent, SocketLimits, fetch,
};

use super::Finding;

pub(super) fn identity(address: &Address) -> Finding {
    let found = default_folder(|name| std::env::var(name).ok())
        .and_then(|folder| IdentityLock::in_folder(&folder, address));
    match found {
        Ok(lock) => Finding { what: "identity", well: true, text: lock.path.display().to_string() },
        Err(error) => Finding { what: "identity", well: false, text: error.to_string() },
    }
}

pub(super) async fn http(address: &Address) -> Finding {
    let url = address.http_url(http::HEALTH);
    let request = FetchRequest {
        url: url.clone(),
        start_byte: 0,
        body_bytes_max: 1 << 20,
        headers: Vec::new(),
        header: "location",
        count: ByteCount::default(),
    };
    match fetch(request).await {
        Ok(reply) if reply.status == 200 && is_page(&reply.body) => Finding {
            what: "http",
            well: false,
            text: format!(
                "{url} answers with a web page: something in between answers, such as the sign-in page of a network; \
                 open the address in a browser"
            ),
        },
        Ok(reply) if reply.status == 200 => {
            Finding { what: "http", well: true, text: format!("{url} answers 200") }
        }
        Ok(FetchReply { status: status @ 300..400, header: Some(location), .. }) => Finding {
            what: "http",
            well: false,
            text: format!("{url} leads to {} (HTTP status {status}): give that address", plain(&location)),
        },
        Ok(reply) => Finding {
            what: "http",
            well: false,
            text: format!("{url} answers {}: this is not a healthy syncer; check the address", reply.status),
        },
        Err(error) => Finding {
            what: "http",
            well: false,
            text: format!(
                "{error}; check that the syncer runs, that the address is right and that no firewall is in between"
            ),
        },
    }
}

/// Returns true if an answer is a web page. A syncer answers with a single word.
fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"<")
}

pub(super) async fn socket(address: &Address) -> Finding {
    let url = address.socket_url();
    let limits = SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: 0 };
    let mut socket = Socket::connect(&url, SUBPROTOCOL, limits);
    let (well, text) = match socket.recv().await {
        SocketEvent::Opened => {
            socket.close(CloseCode::Done.into(), "doctor");
            (true, format!("{url} opens and speaks {SUBPROTOCOL}"))
        }
        SocketEvent::Absent { reason } => {
            (false, format!("there is no run at {url}, which {reason}; give the link to the run's own page"))
        }
        SocketEvent::Closed { reason, .. } => {
            (false, format!("{url} does not open: {reason}; a proxy in between must let WebSockets through"))
        }
        SocketEvent::Frame(_) | SocketEvent::Alive => {
            (false, format!("{url} sends data before it is asked: it is not a syncer"))
        }
    };
    Finding { what: "socket", well, text }
}
