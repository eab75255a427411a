//! The ready line: the one line on standard output that says where a program listens (design section 4).

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write};

use axum::serve::{Listener, ListenerExt as _};
use scenario::build::BUILD_ID;
use scenario::ready::ReadyLine;
use tokio::net::{TcpListener, TcpStream};

/// Prints the ready line of `program` with its bound `address` under the name `http`.
///
/// # Errors
/// When standard output is closed: nobody would learn the address, so the program should end.
pub fn print_ready(program: &str, address: std::net::SocketAddr) -> io::Result<()> {
    let line = ReadyLine {
        ready: BTreeMap::from([("http".to_owned(), address.to_string())]),
        program: program.to_owned(),
        build: BUILD_ID.to_owned(),
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Ends with the first SIGTERM or SIGINT, and `with_stdin` also when standard input ends: whoever started the program is
/// gone then. Never ends when the signals cannot be watched: the process then still dies of them.
pub async fn stop_signal(with_stdin: bool) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        () = stdin_end(with_stdin) => {}
    }
}

/// Ends when standard input does, or never when it is not to be watched.
async fn stdin_end(watched: bool) {
    let (ended, end) = tokio::sync::oneshot::channel();
    if !watched {
        return std::future::pending().await;
    }
    // A thread of its own: the runtime would wait at its end for one of its own threads that reads.
    let read = move || {
        let mut stdin = io::stdin().lock();
        let mut ignored = [0_u8; 256];
        while matches!(stdin.read(&mut ignored), Ok(count) if count > 0) {}
        let _gone = ended.send(());
    };
    match std::thread::Builder::new().name("stdin".to_owned()).spawn(read) {
        Ok(_) => drop(end.await),
        // Without the thread nothing is known of standard input: signals still end the program.
        Err(_) => std::future::pending().await,
    }
}

/// A listener whose connections send small frames at once: events must not wait for acknowledgements.
pub fn prompt(listener: TcpListener) -> impl Listener<Io = TcpStream, Addr = std::net::SocketAddr> {
    listener.tap_io(|stream| {
        // A connection that refuses the option still works, only slower.
        let _ = stream.set_nodelay(true);
    })
}
