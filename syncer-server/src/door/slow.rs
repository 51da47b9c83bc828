//! Requests that show secrets, slowed where they were wrong.

use std::sync::Arc;
use std::time::Duration;

use archipelago_core::wire::http::INVITE_HEADER;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::sleep;

use super::crowd::Place;

/// A wrong secret from this machine itself, or from a proxy that does not say whom it brings, is answered so much
/// later, and never locked out: that is everybody, the owner among them.
const LOCAL_WAIT: Duration = Duration::from_millis(250);
/// What an answer that has a time to come back later says if it does not say another.
const RETRY_S: &str = "10";

/// Slows down whoever guesses tokens and invites, and says with each refusal for want of room when to come back.
pub(super) async fn slow(request: Request, next: Next) -> Response {
    let shows = request.headers().contains_key(header::AUTHORIZATION)
        || request.headers().contains_key(INVITE_HEADER);
    let place = request.extensions().get::<Arc<Place>>().filter(|_| shows).cloned();
    if let Some(wait) = place.as_ref().and_then(|place| place.guess_wait()) {
        let retry = [(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1))];
        let why = "too many wrong tokens or invites came from your address: wait, and show the right one\n";
        return (StatusCode::TOO_MANY_REQUESTS, retry, why).into_response();
    }
    let mut response = next.run(request).await;
    let status = response.status();
    if let Some(place) = place.filter(|_| [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status))
    {
        place.guessed();
        if place.is_shared() {
            sleep(LOCAL_WAIT).await;
        }
    }
    if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
        response.headers_mut().entry(header::RETRY_AFTER).or_insert(HeaderValue::from_static(RETRY_S));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::body::Body;
    use axum::http::HeaderMap;
    use axum::routing::get;
    use axum::{Router, middleware};
    use tower_service::Service;

    use super::super::crowd::Crowd;
    use super::*;

    /// Goal: who guessed too often is not heard any more for a while, not even with the right secret; others are, and
    /// what needs no secret is answered.
    #[tokio::test]
    async fn who_guesses_gets_no_answer_to_a_guess() {
        let secret = |headers: HeaderMap| async move {
            match headers.get(header::AUTHORIZATION) {
                Some(shown) if shown != "Bearer right" => StatusCode::UNAUTHORIZED,
                _ => StatusCode::OK,
            }
        };
        let mut router = Router::new().route("/", get(secret)).layer(middleware::from_fn(slow));
        let crowd = Crowd::new(2, 2);
        let [anne, bert] =
            [1, 2].map(|last| Arc::new(crowd.enter(IpAddr::from([192, 0, 2, last]), false).unwrap()));
        let mut ask = |place: &Arc<Place>, shown: Option<&str>| {
            let request = Request::builder().uri("/").extension(Arc::clone(place));
            let request = shown
                .into_iter()
                .fold(request, |request, shown| request.header(header::AUTHORIZATION, shown));
            let answer = router.call(request.body(Body::empty()).unwrap());
            async move {
                let answer = answer.await.unwrap();
                (answer.status().as_u16(), answer.headers().contains_key(header::RETRY_AFTER))
            }
        };
        for _ in 0..10 {
            assert_eq!(ask(&anne, Some("Bearer wrong")).await, (401, false));
        }
        assert_eq!(ask(&anne, Some("Bearer right")).await, (429, true));
        assert_eq!(ask(&anne, None).await, (200, false));
        assert_eq!(ask(&bert, Some("Bearer right")).await, (200, false));
    }
}
