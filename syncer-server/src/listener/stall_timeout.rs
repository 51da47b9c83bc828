//! Timeouts for peers that stall while they send or receive.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Time without progress after which a peer is disconnected, and time limit for a whole request body.
pub(super) const STALL_MAX: Duration = Duration::from_secs(30);

/// Timer that starts at the first wait and is reset by any progress.
#[derive(Debug)]
struct Stall {
    max: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn new(max: Duration) -> Self {
        Self { max, sleep: None }
    }

    /// Returns `polled`, or an error if it has been pending for too long.
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
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer stalled")))
            }
        }
    }
}

/// A request body with a time limit for the whole body, which also covers peers that send a byte now and then.
#[derive(Debug)]
pub(super) struct TimeoutBody<B> {
    body: B,
    max: Duration,
    /// Timer, started at the first wait.
    end: Option<Pin<Box<Sleep>>>,
}

impl<B> TimeoutBody<B> {
    pub(super) fn new(body: B, max: Duration) -> Self {
        Self { body, max, end: None }
    }
}

impl<B: Body + Unpin> Body for TimeoutBody<B>
where
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Data = B::Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, io::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let max = self.max;
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(max)));
        if end.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        end.as_mut().reset(Instant::now() + max);
        Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, "the request takes too long"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose writes fail if the peer takes nothing for too long.
#[derive(Debug)]
pub(super) struct WriteTimeoutStream<S> {
    stream: S,
    stall: Stall,
}

impl<S> WriteTimeoutStream<S> {
    pub(super) fn new(stream: S, max: Duration) -> Self {
        Self { stream, stall: Stall::new(max) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
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

    /// A body that sends one byte at a time forever, or nothing.
    struct SlowBody(Option<tokio::time::Interval>);

    impl Body for SlowBody {
        type Data = &'static [u8];
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<&'static [u8]>, Infallible>>> {
            match &mut self.0 {
                Some(drips) => drips.poll_tick(context).map(|_| Some(Ok(Frame::data(&b"."[..])))),
                None => Poll::Pending,
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_is_not_there_in_time_is_given_up() {
        for (drips, is_some) in [(None, false), (Some(tokio::time::interval(MAX / 20)), true)] {
            let mut body = TimeoutBody::new(SlowBody(drips), MAX);
            let (began, mut frames) = (Instant::now(), 0);
            let error = loop {
                match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                    Some(Ok(_)) => frames += 1,
                    Some(Err(error)) => break error,
                    None => panic!("it has no end"),
                }
                assert!(began.elapsed() < 20 * MAX, "{frames} came");
            };
            assert_eq!((error.kind(), frames > 1), (io::ErrorKind::TimedOut, is_some));
        }
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(8);
        let mut stream = WriteTimeoutStream::new(ours, MAX);
        let slow = async {
            let mut bytes = [0; 1];
            for _ in 0..16 {
                sleep(MAX / 100).await;
                theirs.read_exact(&mut bytes).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(stream.write_all(&[7; 24]), slow);
        sent.unwrap();
        let error = stream.write_all(&[7; 24]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
