//! A sick engine: slow answers, cut streams, 500s, resets, an API below ours. Each is a clear error within its deadline.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use compose_engine::engine::docker::Docker;
use compose_engine::engine::place::EnginePlace;
use compose_engine::engine::{Engine, LogAsk};
use compose_engine::error::EngineError;
use futures_util::StreamExt;
use std::io::{Read, Write};

/// What the stand-in does with a request whose path begins so.
#[derive(Clone)]
enum Answer {
    Json(u16, String),
    /// Says nothing for a minute.
    Silent,
    /// Closes at once.
    Reset,
    /// Promises more bytes than it sends.
    Cut(String),
}

/// An engine of canned answers on a socket of its own.
fn stand_in(folder: &Path, rules: Vec<(&'static str, Answer)>) -> EnginePlace {
    let socket = folder.join("engine.sock");
    let listener = UnixListener::bind(&socket).expect("a fresh socket");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let rules = rules.clone();
            std::thread::spawn(move || serve(stream, &rules));
        }
    });
    EnginePlace { socket, because: "a test".to_owned() }
}

fn serve(mut stream: UnixStream, rules: &[(&'static str, Answer)]) {
    let mut head = Vec::new();
    let mut byte = [0_u8; 1];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let path = text.split_whitespace().nth(1).unwrap_or_default();
    // The client may put its API version in front.
    let path = match path.strip_prefix("/v1.") {
        Some(rest) => rest.find('/').map_or(path, |at| &rest[at..]),
        None => path,
    };
    let answer = rules.iter().find(|(begin, _)| path.starts_with(begin)).map(|(_, answer)| answer.clone());
    let send = |stream: &mut UnixStream, status: u16, length: usize, body: &str| {
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body.as_bytes());
    };
    match answer {
        Some(Answer::Json(status, body)) => send(&mut stream, status, body.len(), &body),
        Some(Answer::Silent) => std::thread::sleep(Duration::from_secs(60)),
        Some(Answer::Cut(body)) => send(&mut stream, 200, body.len() + 100, &body),
        Some(Answer::Reset) => {}
        None => send(&mut stream, 404, 25, "{\"message\":\"no such page\"}"),
    }
}

fn version(max: &str) -> (&'static str, Answer) {
    (
        "/version",
        Answer::Json(
            200,
            format!("{{\"ApiVersion\":\"{max}\",\"MinAPIVersion\":\"1.12\",\"Version\":\"x\"}}"),
        ),
    )
}

fn info() -> (&'static str, Answer) {
    ("/info", Answer::Json(200, "{\"Name\":\"h\",\"NCPU\":2,\"MemTotal\":1}".to_owned()))
}

async fn connected(rules: Vec<(&'static str, Answer)>) -> (Docker, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = stand_in(folder.path(), rules);
    let engine = Docker::connect_with_limit(&place, Duration::from_millis(500)).await.expect("it connects");
    (engine, folder)
}

async fn refused(rules: Vec<(&'static str, Answer)>) -> EngineError {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = stand_in(folder.path(), rules);
    Docker::connect_with_limit(&place, Duration::from_millis(500)).await.expect_err("it must not connect")
}

#[tokio::test]
async fn report_29_an_api_below_ours_names_both_ranges() {
    let error = refused(vec![version("1.40")]).await;
    assert!(matches!(&error, EngineError::ApiVersion { .. }), "{error:?}");
    assert!(error.to_string().contains("1.12 to 1.40"), "{error}");
}

#[tokio::test]
async fn nothing_a_reset_and_silence_are_told_apart() {
    let nowhere = EnginePlace { socket: PathBuf::from("/nowhere.sock"), because: "a test".to_owned() };
    let error = Docker::connect(&nowhere).await.expect_err("nothing is there");
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error:?}");
    let error = refused(vec![("/version", Answer::Reset)]).await;
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error:?}");
    let error = refused(vec![("/version", Answer::Silent)]).await;
    assert!(matches!(error, EngineError::Timeout { limit_ms: 500, .. }), "{error:?}");
}

#[tokio::test]
async fn report_30_every_call_has_a_deadline_of_its_own() {
    let silent =
        vec![version("1.41"), info(), ("/containers", Answer::Silent), ("/networks", Answer::Silent)];
    let (engine, _folder) = connected(silent).await;
    for error in [
        engine.inspect("x").await.expect_err("silent"),
        engine.networks(None).await.expect_err("silent"),
        engine.act("x", compose_engine::engine::Act::Start).await.expect_err("silent"),
    ] {
        assert!(matches!(error, EngineError::Timeout { limit_ms: 500, .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_500_keeps_the_engine_s_words_and_a_cut_body_is_a_broken_connection() {
    let message = "{\"message\":\"driver failed programming external connectivity\"}".to_owned();
    let rules = vec![
        version("1.41"),
        info(),
        ("/containers/x/start", Answer::Json(500, message)),
        ("/containers/x/json", Answer::Cut("{\"Id\":\"x\"".to_owned())),
        ("/volumes", Answer::Reset),
        ("/containers/x/logs", Answer::Reset),
    ];
    let (engine, _folder) = connected(rules).await;
    let error = engine.act("x", compose_engine::engine::Act::Start).await.expect_err("500");
    assert!(
        matches!(&error, EngineError::Answer { status: 500, reason, .. } if reason.contains("driver failed")),
        "{error:?}"
    );
    let error = engine.inspect("x").await.expect_err("cut");
    assert!(matches!(error, EngineError::Broken { .. }), "{error:?}");
    let error = engine.volumes(None).await.expect_err("reset");
    assert!(matches!(error, EngineError::Broken { .. }), "{error:?}");
    let piece = engine.logs("x", LogAsk::default()).next().await;
    assert!(!matches!(piece, Some(Ok(_))), "{piece:?}");
}

#[tokio::test]
async fn report_34_events_of_an_unknown_kind_and_broken_lines_do_not_end_the_stream() {
    let lines = "{\"Type\":\"starship\",\"Action\":\"land\",\"timeNano\":1}\nnot json\n\
                 {\"Type\":\"container\",\"Action\":\"die\",\"Actor\":{\"ID\":\"a\"},\"timeNano\":2}\n";
    let (engine, _folder) =
        connected(vec![version("1.41"), info(), ("/events", Answer::Json(200, lines.to_owned()))]).await;
    let events: Vec<_> = engine.events("l=x", 0).filter_map(|event| async { event.ok() }).collect().await;
    let actions: Vec<&str> = events.iter().map(|event| event.action.as_str()).collect();
    assert_eq!(actions, ["land", "die"]);
}
