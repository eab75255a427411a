//! A private Postgres out of installed server binaries, as an unprivileged user, on a socket of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A server that ends with the test.
pub struct Postgres {
    pub url: String,
    bin: PathBuf,
    directory: TempDir,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let data = self.directory.path().join("data");
        let _ = command(&self.bin, "pg_ctl").args(["-m", "immediate", "-D"]).arg(data).arg("stop").status();
    }
}

/// Where `initdb` is; Debian keeps it out of the path.
fn binaries() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = debian.chain(std::env::split_paths(&path));
    all.into_iter().find(|folder| folder.join("initdb").exists() && folder.join("pg_ctl").exists())
}

/// The servers refuse to run as root.
fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}

fn command(bin: &Path, program: &str) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(bin.join(program));
        command
    } else {
        Command::new(bin.join(program))
    };
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).current_dir("/");
    command
}

/// Starts a server, or says loudly why the test is skipped.
pub fn start() -> Option<Postgres> {
    let skipped = |why: &str| {
        eprintln!("SKIPPED: {why}; lease tests need the binaries of a Postgres server");
        None
    };
    let Some(bin) = binaries() else { return skipped("no initdb and pg_ctl found") };
    let directory = tempfile::Builder::new().prefix("refshard-pg-").tempdir().unwrap();
    let owned = !is_root()
        || Command::new("chown").arg("postgres").arg(directory.path()).status().is_ok_and(|s| s.success());
    if !owned {
        return skipped("this is root and there is no user `postgres`");
    }
    let data = directory.path().join("data");
    let made = command(&bin, "initdb").args(["-U", "devshardd", "-A", "trust", "-D"]).arg(&data).status();
    if !made.is_ok_and(|status| status.success()) {
        return skipped("initdb failed");
    }
    // A socket only: no port is picked, and nobody else can reach it.
    let socket = directory.path().display().to_string();
    let options = format!("-k {socket} -c listen_addresses='' -c fsync=off");
    let started = command(&bin, "pg_ctl").args(["-w", "-o", &options, "-D"]).arg(&data).arg("start").status();
    if !started.is_ok_and(|status| status.success()) {
        return skipped("the server did not start");
    }
    let url = format!("host={socket} user=devshardd dbname=postgres");
    Some(Postgres { url, bin, directory })
}
