//! Tests of parameters, data and pages over HTTP.

use archipelago_core::data::ShardTokens;
use archipelago_core::diloco::Layout;
use archipelago_core::model::{self, ModelSpec};

use crate::support::{Client, Server, config, header};

#[tokio::test]
async fn fragments_are_the_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let run = welcome.run;
    let layout = Layout::of(&welcome.spec.model).unwrap();
    let fragments = archipelago_core::diloco::Fragments::plan(
        &layout,
        welcome.spec.exchange.fragments.try_into().unwrap(),
    );
    let theta = model::init(&ModelSpec::of(&welcome.spec.model).unwrap(), welcome.spec.seed).unwrap();
    for p in fragments.ids() {
        let (code, head, body) = server.http(&format!("GET /v1/runs/{run}/fragments/{p}/0")).await;
        assert_eq!((code, header(&head, "x-archipelago-version")), (200, "0"));
        assert!(header(&head, "cache-control").contains("immutable"));
        let expected = archipelago_core::diloco::halves::to_bytes(&fragments.gather(p, &theta));
        assert_eq!(body, expected, "fragment {p}");

        let etag = header(&head, "etag");
        let (code, head, part) = server
            .http(&format!("GET /v1/runs/{run}/fragments/{p}/0\nRange: bytes=8-\nIf-Range: {etag}"))
            .await;
        assert_eq!((code, &*part), (206, &expected[8..]));
        assert_eq!(
            header(&head, "content-range"),
            format!("bytes 8-{}/{}", expected.len() - 1, expected.len())
        );
        let again = format!("GET /v1/runs/{run}/fragments/{p}/0\nIf-None-Match: {etag}");
        assert_eq!(server.http(&again).await.0, 304);
    }
    // A download so slow that a merge always intervenes gets the whole current version.
    let (_, _, now) = server.http(&format!("GET /v1/runs/{run}/fragments/0/0")).await;
    let other = format!("GET /v1/runs/{run}/fragments/0/99\nRange: bytes=8-");
    let (code, head, body) = server.http(&other).await;
    assert_eq!((code, header(&head, "x-archipelago-version"), body), (200, "0", now));
    assert_eq!(header(&head, "cache-control"), "no-store");
    assert_eq!(server.http(&format!("GET /v1/runs/{run}/fragments/999/0")).await.0, 404);
    assert_eq!(server.http("GET /v1/runs/0000000000000001/fragments/0/0").await.0, 404);
    assert_eq!(server.http(&format!("GET /v1/runs/{run}/fragments/x/0")).await.0, 400);
    server.stop().await;
}

#[tokio::test]
async fn shards_are_what_the_welcome_says() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let (run, data) = (welcome.run, &welcome.spec.data);
    for (index, spec) in data.shards.iter().enumerate() {
        let path = format!("/v1/runs/{run}/shards/{index}");
        let (code, head, body) = server.http(&format!("GET {path}")).await;
        assert_eq!(code, 200);
        let hex: String = spec.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(header(&head, "etag"), format!("\"{hex}\""));
        let (code, _, rest) = server.http(&format!("GET {path}\nRange: bytes=100-")).await;
        assert_eq!((code, &*rest), (206, &body[100..]));
        // A range of content with another tag is useless, so the response is the whole file.
        let (code, _, whole) = server.http(&format!("GET {path}\nRange: bytes=100-\nIf-Range: \"x\"")).await;
        assert_eq!((code, whole.len()), (200, body.len()));
        let beyond = format!("GET {path}\nRange: bytes={}-", body.len());
        assert_eq!(server.http(&beyond).await.0, 416);
        ShardTokens::parse(body, spec, data.token_bytes, welcome.spec.model.vocab).unwrap();
    }
    assert_eq!(server.http(&format!("GET /v1/runs/{run}/shards/{}", data.shards.len())).await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn pages_are_there_and_strict() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    for path in ["/", "/dashboard"] {
        let (code, head, body) = server.http(&format!("GET {path}")).await;
        let text = String::from_utf8(body).unwrap();
        if code == 404 {
            assert!(text.contains("cargo xtask web"), "a syncer without pages says how to get them: {text}");
            continue;
        }
        assert!(header(&head, "content-type").starts_with("text/html"), "{path}");
        let policy = header(&head, "content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("'unsafe"), "{policy}");
        assert!(!text.contains("style=") && !text.contains("onclick"), "{path} has nothing inline");
        let scripts: Vec<_> = text.split('"').filter_map(|part| part.strip_prefix("./assets/")).collect();
        assert!(!scripts.is_empty(), "{path} loads something: {text}");
        for script in scripts {
            let (code, head, plain) = server.http(&format!("GET /assets/{script}")).await;
            assert_eq!(code, 200, "{script}");
            assert!(header(&head, "cache-control").contains("immutable"), "{script}");
            let asked = format!("GET /assets/{script}\nAccept-Encoding: br, gzip");
            let (_, head, packed) = server.http(&asked).await;
            assert_eq!(header(&head, "content-encoding"), "gzip", "{script}");
            assert!(packed.len() < plain.len(), "{script}");
            let again = format!("GET /assets/{script}\nIf-None-Match: {}", header(&head, "etag"));
            assert_eq!(server.http(&again).await.0, 304, "{script}");
        }
    }
    assert_eq!(server.http("GET /assets/no-such-file.js").await.0, 404);
    assert_eq!(server.http("GET /healthz").await.0, 200);
    assert_eq!(server.http("GET /readyz").await.0, 200);
    assert_eq!(server.http("GET /no-such-page").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn pages_of_a_folder_show_once_they_are_there() {
    let (dir, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(syncer_server::ServeConfig {
        pages: Some(pages.path().to_owned()),
        ..config(dir.path())
    })
    .await;
    let (code, head, body) = server.http("GET /").await;
    assert_eq!((code, header(&head, "retry-after")), (503, "2"));
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("http-equiv=\"refresh\"") && text.contains("being built"), "{text}");

    std::fs::create_dir(pages.path().join("assets")).unwrap();
    std::fs::write(pages.path().join("index.html"), "<p>a page</p>").unwrap();
    std::fs::write(pages.path().join("assets/engine-x.wasm"), b"\0asm").unwrap();
    std::fs::write(pages.path().join("secret"), "not for the network").unwrap();
    let (code, head, body) = server.http("GET /").await;
    assert_eq!((code, &*body), (200, &b"<p>a page</p>"[..]));
    assert!(header(&head, "content-security-policy").contains("default-src 'none'"));
    let again = format!("GET /\nIf-None-Match: {}", header(&head, "etag"));
    assert_eq!(server.http(&again).await.0, 304);
    let (code, head, body) = server.http("GET /assets/engine-x.wasm").await;
    assert_eq!((code, header(&head, "content-type"), &*body), (200, "application/wasm", &b"\0asm"[..]));
    // Compressible files are sent compressed to clients that accept it, as are files built into the program.
    std::fs::write(pages.path().join("assets/long-x.js"), "let island;\n".repeat(1_000)).unwrap();
    for (file, is_packed, bytes_max) in [("engine-x.wasm", false, 4), ("long-x.js", true, 200)] {
        for _ in 0..2 {
            let asked = format!("GET /assets/{file}\nAccept-Encoding: br, gzip");
            let (code, head, body) = server.http(&asked).await;
            assert_eq!((code, head.contains("content-encoding: gzip")), (200, is_packed), "{file}: {head}");
            assert!(body.len() <= bytes_max, "{file}: {} bytes", body.len());
        }
    }
    assert_eq!(server.http("GET /assets/long-x.js").await.2.len(), 12_000);
    for outside in ["/assets/..%2Fsecret", "/assets/%2E%2E%2Fsecret", "/assets/..", "/secret"] {
        assert_eq!(server.http(&format!("GET {outside}")).await.0, 404, "{outside}");
    }
    server.stop().await;
}

/// `Accept` header of a browser.
pub const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8";

/// The repository's page for wrong links.
pub const MISSING: &str = include_str!("../../../web-demo/pages/missing.html");

/// Goal: for a wrong link, a browser gets a page with links that work, and a program gets a line of text.
#[tokio::test]
async fn wrong_links_lead_on() {
    let (dir, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(pages.path().join("missing.html"), MISSING).unwrap();
    let folder = Some(pages.path().to_owned());
    let server = Server::start(syncer_server::ServeConfig { pages: folder, ..config(dir.path()) }).await;
    for (path, home) in [("/nope", "./"), ("/runs", "./"), ("/runs/none/", "../../"), ("/a/b/c", "../../")] {
        let (code, head, body) = server.http(&format!("GET {path}\n{BROWSER}")).await;
        assert_eq!((code, header(&head, "content-type")), (404, "text/html; charset=utf-8"), "{path}");
        assert!(header(&head, "content-security-policy").contains("default-src 'none'"), "{path}");
        let page = String::from_utf8(body).unwrap();
        let button = format!("<a class=\"button primary\" href=\"{home}\">To the run</a>");
        assert!(page.contains("There is no page at this address.") && page.contains(&button), "{page}");
        assert!(!page.contains("\"./\"") || home == "./", "{path}: {page}");
    }
    for plain in ["GET /nope", "GET /nope\nAccept: */*", &format!("GET /v1/nope\n{BROWSER}")] {
        let (code, _, body) = server.http(plain).await;
        assert_eq!((code, &*body), (404, &b"there is nothing here; / shows the run\n"[..]), "{plain}");
    }
    server.stop().await;
}
