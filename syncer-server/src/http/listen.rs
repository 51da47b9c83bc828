//! Answering whoever connects.

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Answers requests until told to stop.
pub async fn answer(listener: TcpListener, router: Router, mut stopping: watch::Receiver<bool>) {
    let stopped = async move { drop(stopping.wait_for(|stopped| *stopped).await) };
    let listener = listener.tap_io(without_delay);
    let web = axum::serve(listener, router).with_graceful_shutdown(stopped);
    if let Err(error) = web.await {
        tracing::error!(%error, "nothing listens any more");
    }
}

/// Short messages must not wait for the acknowledgement of those before (Nagle, delayed ACK).
fn without_delay(stream: &mut TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection stays slow");
    }
}
