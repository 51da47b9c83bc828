//! Peers that stop in the middle: of what they send, and of what they are sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Time without any progress after which a peer is given up.
pub(super) const STALL_MAX: Duration = Duration::from_secs(30);

/// A timer that begins with the first wait and ends with any progress.
#[derive(Debug)]
struct Stall {
    max: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn new(max: Duration) -> Self {
        Self { max, sleep: None }
    }

    /// Gives `polled` on, or that it has waited for too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, polled: Poll<T>) -> Poll<Result<T, io::Error>> {
        match polled {
            Poll::Ready(done) => {
                self.sleep = None;
                Poll::Ready(Ok(done))
            }
            Poll::Pending => {
                let max = self.max;
                let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(max)));
                if sleep.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                sleep.as_mut().reset(Instant::now() + max);
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer stands still")))
            }
        }
    }
}

/// The body of a request that is given up once nothing of it comes for too long.
#[derive(Debug)]
pub(super) struct Coming<B> {
    body: B,
    stall: Stall,
}

impl<B> Coming<B> {
    pub(super) fn new(body: B, max: Duration) -> Self {
        Self { body, stall: Stall::new(max) }
    }
}

impl<B: Body + Unpin> Body for Coming<B>
where
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Data = B::Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, io::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.stall.watch(context, polled).map(|watched| match watched {
            Ok(frame) => frame.map(|frame| frame.map_err(io::Error::other)),
            Err(stalled) => Some(Err(stalled)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that is given up once its peer takes nothing for too long of what is sent.
#[derive(Debug)]
pub(super) struct Going<S> {
    stream: S,
    stall: Stall,
}

impl<S> Going<S> {
    pub(super) fn new(stream: S, max: Duration) -> Self {
        Self { stream, stall: Stall::new(max) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Going<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Going<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.stall.watch(context, polled).map(|watched| watched?)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.stall.watch(context, polled).map(|watched| watched?)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const MAX: Duration = Duration::from_secs(1);

    /// Nothing ever comes of it.
    struct Never;

    impl Body for Never {
        type Data = &'static [u8];
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<&'static [u8]>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_body_of_which_nothing_comes_is_given_up() {
        let mut coming = Coming::new(Never, MAX);
        let frame = std::future::poll_fn(|context| Pin::new(&mut coming).poll_frame(context)).await;
        assert!(matches!(frame, Some(Err(error)) if error.kind() == io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(8);
        let mut going = Going::new(ours, MAX);
        let slow = async {
            let mut bytes = [0; 1];
            for _ in 0..16 {
                sleep(MAX / 100).await;
                theirs.read_exact(&mut bytes).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(going.write_all(&[7; 24]), slow);
        sent.unwrap();
        let error = going.write_all(&[7; 24]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
