//! Who may ask. No password is asked for on loopback, so a web page that the user happens to visit must not be able to
//! reach Weir through the user's browser: not by posting a form (`Origin`), and not by pointing its own name at
//! 127.0.0.1 (`Host`).

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::{Problem, Refusal};

static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What the address that is listened on demands of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard {
    loopback: bool,
}

impl Guard {
    pub(super) fn for_address(address: SocketAddr) -> Self {
        Self { loopback: address.ip().is_loopback() }
    }

    fn verdict(&self, method: &Method, uri_host: Option<&Authority>, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).or(uri_host.map(Authority::as_str));
        if self.loopback && !host.is_some_and(names_loopback) {
            return Err(Problem::new(
                Refusal::WrongHost,
                format!("this server answers on loopback only, not as {}", host.unwrap_or("a host without a name")),
                "ask for http://127.0.0.1 or http://localhost with the port, or start the server with --listen-http on \
                 an address that others may reach",
            ));
        }
        if method.is_safe() {
            return Ok(());
        }
        let foreign = match headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
            Some(origin) => origin.split_once("://").map(|(_, origin)| origin) != host,
            None => headers.get(&FETCH_SITE).is_some_and(|site| site == "cross-site"),
        };
        if foreign {
            return Err(Problem::new(
                Refusal::ForeignOrigin,
                "a browser sent this request on behalf of another site, which may not change anything here",
                "use the dashboard of this server, or a client that is not a web page",
            ));
        }
        Ok(())
    }
}

/// Whether the host (with or without a port) is this machine under a name that no one else can own.
fn names_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

/// Refuses what must not be answered, before any handler sees it.
pub(super) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.verdict(request.method(), request.uri().authority(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(guard: Guard, method: Method, headers: &[(&'static str, &'static str)]) -> Result<(), u16> {
        let map = headers.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().unwrap())).collect();
        guard.verdict(&method, None, &map).map_err(|problem| problem.status().as_u16())
    }

    #[test]
    fn a_loopback_server_answers_to_loopback_names_only() {
        let guard = Guard { loopback: true };
        for host in ["127.0.0.1:4578", "localhost:4578", "LOCALHOST", "[::1]:4578", "weir.localhost:1", "127.8.9.1"] {
            assert_eq!(verdict(guard, Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example:4578", "127.0.0.1.evil.example", "localhost.evil.example", "", "a b"] {
            assert_eq!(verdict(guard, Method::GET, &[("host", host)]), Err(421), "{host}");
        }
        assert_eq!(verdict(guard, Method::GET, &[]), Err(421));
        assert_eq!(verdict(Guard { loopback: false }, Method::GET, &[("host", "weir.example")]), Ok(()));
    }

    #[test]
    fn another_sites_page_may_read_nothing_new_and_change_nothing() {
        for loopback in [true, false] {
            let guard = Guard { loopback };
            let host = ("host", "localhost:4578");
            let posts = |headers: &[(&'static str, &'static str)]| verdict(guard, Method::POST, headers);
            assert_eq!(posts(&[host]), Ok(()), "curl and psql send no Origin");
            assert_eq!(posts(&[host, ("origin", "http://localhost:4578")]), Ok(()));
            assert_eq!(posts(&[host, ("origin", "https://evil.example")]), Err(403));
            assert_eq!(posts(&[host, ("origin", "http://localhost:9999")]), Err(403), "another port is another site");
            assert_eq!(posts(&[host, ("origin", "null")]), Err(403), "a sandboxed frame");
            assert_eq!(posts(&[host, ("sec-fetch-site", "cross-site")]), Err(403));
            assert_eq!(posts(&[host, ("sec-fetch-site", "same-origin")]), Ok(()));
            assert_eq!(verdict(guard, Method::DELETE, &[host, ("origin", "https://evil.example")]), Err(403));
        }
    }
}
