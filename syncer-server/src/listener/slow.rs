//! Middleware that applies the rate limit on wrong secrets to HTTP requests.

use std::sync::Arc;

use archipelago_core::wire::http::INVITE_HEADER;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::auth_throttle::TooMany;
use super::connection_limits::ConnectionGuard;

/// Value of `Retry-After` for a response without this header, in seconds.
const RETRY_S: &str = "10";

/// Marker of a response to a request with a wrong secret that was answered as if it had none.
#[derive(Clone, Copy, Debug)]
pub struct WrongSecret;

/// Checks secrets within the rate limit of their origin, and adds `Retry-After` to each refusal for lack of capacity.
pub(super) async fn slow(request: Request, next: Next) -> Response {
    let shows = request.headers().contains_key(header::AUTHORIZATION)
        || request.headers().contains_key(INVITE_HEADER);
    let guard = request.extensions().get::<Arc<ConnectionGuard>>().filter(|_| shows).cloned();
    let check = match guard {
        None => None,
        Some(guard) => match guard.check().await {
            Ok(check) => Some(check),
            Err(too_many) => return refusal(too_many),
        },
    };
    let mut response = next.run(request).await;
    let status = response.status();
    let is_wrong = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status)
        || response.extensions().get::<WrongSecret>().is_some();
    match check {
        Some(check) if is_wrong => {
            if let Err(too_many) = check.wrong().await {
                return refusal(too_many);
            }
        }
        Some(check) => check.right(),
        None => {}
    }
    if [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
        response.headers_mut().entry(header::RETRY_AFTER).or_insert(HeaderValue::from_static(RETRY_S));
    }
    response
}

fn refusal(TooMany(wait): TooMany) -> Response {
    let retry = [(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1))];
    let why = "too many wrong tokens or invites came from your address: wait, then use the right one\n";
    (StatusCode::TOO_MANY_REQUESTS, retry, why).into_response()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::body::Body;
    use axum::http::HeaderMap;
    use axum::routing::get;
    use axum::{Router, middleware};
    use tower_service::Service;

    use super::super::connection_limits::ConnectionLimits;
    use super::*;

    /// Goal: an address with too many guesses no longer learns the cause, but the right secret still passes.
    #[tokio::test]
    async fn only_wrong_secrets_are_throttled() {
        let secret = |headers: HeaderMap| async move {
            match headers.get(header::AUTHORIZATION) {
                Some(shown) if shown == "Bearer ignored" => axum::Extension(WrongSecret).into_response(),
                Some(shown) if shown != "Bearer right" => StatusCode::UNAUTHORIZED.into_response(),
                _ => StatusCode::OK.into_response(),
            }
        };
        let mut router = Router::new().route("/", get(secret)).layer(middleware::from_fn(slow));
        let limits = ConnectionLimits::new(2, 2);
        let [anne, bert] =
            [1, 2].map(|last| Arc::new(limits.acquire(IpAddr::from([192, 0, 2, last]), false).unwrap()));
        let mut ask = |guard: &Arc<ConnectionGuard>, shown: Option<&str>| {
            let request = Request::builder().uri("/").extension(Arc::clone(guard));
            let request = shown
                .into_iter()
                .fold(request, |request, shown| request.header(header::AUTHORIZATION, shown));
            let answer = router.call(request.body(Body::empty()).unwrap());
            async move {
                let answer = answer.await.unwrap();
                (answer.status().as_u16(), answer.headers().contains_key(header::RETRY_AFTER))
            }
        };
        for _ in 0..5 {
            assert_eq!(ask(&anne, Some("Bearer wrong")).await, (401, false));
            assert_eq!(ask(&anne, Some("Bearer ignored")).await, (200, false));
        }
        for _ in 0..20 {
            assert_eq!(ask(&anne, Some("Bearer right")).await, (200, false));
        }
        assert_eq!(ask(&anne, Some("Bearer wrong")).await, (429, true));
        assert_eq!(ask(&anne, Some("Bearer ignored")).await, (429, true));
        assert_eq!(ask(&anne, None).await, (200, false));
        assert_eq!(ask(&bert, Some("Bearer wrong")).await, (401, false));
    }
}
