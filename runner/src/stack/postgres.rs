//! Postgres for a run: a server named by the `PG*` variables, or a private one from installed server binaries.
//!
//! One database a participant. A private server listens on a Unix socket in the run's private directory alone, runs
//! as a child of the guard, and as another user when the runner is root, since it refuses root. Databases on a server
//! of others carry a name of this run and are dropped at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::{Context, launch};
use crate::error::RunnerError;
use crate::guard::Spawn;

/// Service name of a private server.
pub const SERVICE: &str = "postgres";
/// Name of the short service that makes a private server's directory.
const INITDB: &str = "postgres-initdb";
/// Time limit of making a private server's directory.
const INITDB_LIMIT: Duration = Duration::from_secs(60);
/// Tries until a private server answers, and the pause between them.
const TRIES_MAX: u32 = 200;
const TRY_PAUSE: Duration = Duration::from_millis(50);
/// Time limit of one call of `psql`.
const PSQL_LIMIT: Duration = Duration::from_secs(15);
/// User of a private server inside Postgres.
const USER: &str = "proofload";

/// Where Postgres comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running server, by the `PG*` variables.
    Server {
        /// Host or socket directory.
        host: String,
        /// Port.
        port: String,
        /// User.
        user: String,
        /// Password, kept out of every file.
        password: Option<String>,
    },
    /// Installed server binaries.
    Installed(PathBuf),
}

/// Looks for Postgres: first `PGHOST`, then `initdb`, `postgres` and `psql` in one folder.
///
/// # Errors
/// In words, when neither is there.
pub fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Source, String> {
    if let Some(host) = variable("PGHOST").filter(|host| !host.is_empty()) {
        let or = |name: &str, default: &str| variable(name).unwrap_or_else(|| default.to_owned());
        return Ok(Source::Server {
            host,
            port: or("PGPORT", "5432"),
            user: or("PGUSER", "postgres"),
            password: variable("PGPASSWORD"),
        });
    }
    let path = variable("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for versions in ["/usr/lib/postgresql", "/usr/local/pgsql"] {
        let list = std::fs::read_dir(versions).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = list.map(|entry| entry.path().join("bin")).collect();
        // The newest first.
        found.sort_unstable_by(|one, two| two.cmp(one));
        folders.extend(found);
    }
    let whole = |folder: &PathBuf| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file());
    folders.into_iter().find(whole).map(Source::Installed).ok_or_else(|| {
        "no Postgres: PGHOST is not set, and no folder of PATH or /usr/lib/postgresql/*/bin holds `initdb` and \
         `postgres`"
            .to_owned()
    })
}

/// The databases of a run.
#[derive(Clone, Debug)]
pub struct Databases {
    source: Source,
    /// Socket directory of a private server.
    socket: PathBuf,
    names: Vec<String>,
    /// How a private server is started, also again.
    pub spawn: Option<Spawn>,
}

impl Databases {
    /// Starts a private server if there is none to use, and makes one database for each name.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] with the log when it does not come up.
    pub async fn open(
        source: Source,
        names: Vec<String>,
        context: &mut Context<'_>,
    ) -> Result<Self, RunnerError> {
        let socket = context.work.join("postgres");
        let mut databases = Self { source, socket, names, spawn: None };
        if let Source::Installed(folder) = &databases.source {
            let spawn = private(&folder.clone(), &databases.socket, context).await?;
            launch::spawn(context, spawn.clone()).await?;
            databases.spawn = Some(spawn);
            databases.ready(context).await?;
        }
        for name in &databases.names {
            let statement = format!("CREATE DATABASE {name}");
            context.dispatcher.through(databases.psql(&statement)).await?.map_err(|why| {
                launch::failed(context.dir, SERVICE, format!("making the Postgres database {name}: {why}"))
            })?;
        }
        Ok(databases)
    }

    /// Waits until the private server answers a query.
    ///
    /// # Errors
    /// [`RunnerError::Environment`] when it has ended or does not answer in time.
    pub async fn ready(&self, context: &mut Context<'_>) -> Result<(), RunnerError> {
        let mut last = String::new();
        for _ in 0..TRIES_MAX {
            match context.dispatcher.through(self.psql("SELECT 1")).await? {
                Ok(()) => return Ok(()),
                Err(why) => last = why,
            }
            if let Some(ended) =
                context.dispatcher.services.get(SERVICE).and_then(|state| state.ended.clone())
            {
                let message = format!("{SERVICE} ended before it was ready ({ended})");
                return Err(launch::failed(context.dir, SERVICE, message));
            }
            if context.dispatcher.during(tokio::time::sleep(TRY_PAUSE)).await?.is_err() {
                return Err(RunnerError::environment("stopped while the stack was starting"));
            }
        }
        Err(launch::failed(context.dir, SERVICE, format!("{SERVICE} did not answer: {last}")))
    }

    /// Connection URL of a database.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        match &self.source {
            Source::Installed(_) => {
                format!("postgres://{USER}@{}/{name}", percent(&self.socket.display().to_string()))
            }
            Source::Server { host, port, user, password } => {
                let password =
                    password.as_ref().map_or_else(String::new, |text| format!(":{}", percent(text)));
                format!("postgres://{}{password}@{}:{port}/{name}", percent(user), percent(host))
            }
        }
    }

    /// The `PG*` variables with which a program of others reaches the database of a participant; empty when it has
    /// none.
    #[must_use]
    pub fn variables(&self, host: &str) -> BTreeMap<String, String> {
        let end = format!("_{}", host.replace('-', "_"));
        let Some(name) = self.names.iter().find(|name| name.ends_with(&end)) else { return BTreeMap::new() };
        let mut variables = self.connection();
        variables.push(("PGDATABASE", name.clone()));
        // Sockets and loopback need no encryption, and a private server offers none.
        variables.push(("PGSSLMODE", "prefer".to_owned()));
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The `PG*` variables of the server.
    fn connection(&self) -> Vec<(&'static str, String)> {
        match &self.source {
            Source::Installed(_) => {
                vec![("PGHOST", self.socket.display().to_string()), ("PGUSER", USER.to_owned())]
            }
            Source::Server { host, port, user, password } => {
                let mut variables =
                    vec![("PGHOST", host.clone()), ("PGPORT", port.clone()), ("PGUSER", user.clone())];
                variables.extend(password.clone().map(|password| ("PGPASSWORD", password)));
                variables
            }
        }
    }

    /// What must not reach a file.
    #[must_use]
    pub fn secrets(source: &Source) -> Vec<String> {
        match source {
            Source::Server { password: Some(password), .. } if !password.is_empty() => {
                vec![password.clone(), percent(password)]
            }
            _ => Vec::new(),
        }
    }

    /// Drops the databases on a server that goes on running; a private one goes as a whole.
    ///
    /// # Errors
    /// In words: what is left there.
    pub async fn close(&self) -> Result<(), String> {
        if matches!(self.source, Source::Installed(_)) {
            return Ok(());
        }
        let mut left = Vec::new();
        for name in &self.names {
            if let Err(why) = self.psql(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await {
                left.push(format!("{name} ({why})"));
            }
        }
        if left.is_empty() { Ok(()) } else { Err(format!("Postgres databases left: {}", left.join(", "))) }
    }

    async fn psql(&self, statement: &str) -> Result<(), String> {
        let program = match &self.source {
            Source::Installed(folder) if folder.join("psql").is_file() => folder.join("psql"),
            Source::Installed(_) | Source::Server { .. } => PathBuf::from("psql"),
        };
        let call = tokio::process::Command::new(&program)
            .args(["--no-psqlrc", "--quiet", "--dbname=postgres", "--command", statement])
            .envs(self.connection())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        match tokio::time::timeout(PSQL_LIMIT, call).await {
            Err(_) => Err(format!("psql did not end within {} s", PSQL_LIMIT.as_secs())),
            Ok(Err(error)) => Err(format!("{}: {error}; install the Postgres client", program.display())),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().chars().take(300).collect()),
        }
    }
}

/// Makes the directory of a private server and says how the server is started.
async fn private(folder: &Path, home: &Path, context: &mut Context<'_>) -> Result<Spawn, RunnerError> {
    let failed = |error: std::io::Error| {
        RunnerError::environment(format!("preparing Postgres in {}: {error}", home.display()))
    };
    std::fs::create_dir(home).map_err(failed)?;
    let user = other_user();
    if let Some((uid, gid)) = user {
        std::os::unix::fs::chown(home, Some(uid), Some(gid)).map_err(failed)?;
        // The other user must be able to pass through, not to look around.
        let pass = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(context.work, pass).map_err(failed)?;
    }
    let data = home.join("data").display().to_string();
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let spawn = |service: &str, program: &str, args: Vec<String>, context: &Context<'_>| Spawn {
        service: service.to_owned(),
        program: folder.join(program),
        args,
        env: BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]),
        log: context.dir.path(&launch::log_file(service)),
        user,
        stdout_to_log: false,
    };
    let mut args = text(&["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]);
    args.extend([format!("--username={USER}"), format!("--pgdata={data}")]);
    launch::spawn(context, spawn(INITDB, "initdb", args, context)).await?;
    launch::finished(context, INITDB, INITDB_LIMIT).await?;
    let mut args = vec!["-D".to_owned(), data, "-k".to_owned(), home.display().to_string()];
    // Nothing of it survives the run: no syncing, and no shared memory that could stay behind.
    for setting in [
        "listen_addresses=",
        "fsync=off",
        "full_page_writes=off",
        "synchronous_commit=off",
        "dynamic_shared_memory_type=mmap",
        "shared_buffers=16MB",
        "max_connections=200",
        "autovacuum=off",
    ] {
        args.extend(["-c".to_owned(), setting.to_owned()]);
    }
    Ok(spawn(SERVICE, "postgres", args, context))
}

/// As root: the user `postgres`, else `nobody`. Otherwise the server runs as ourselves.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let fields: Vec<&str> =
            users.lines().find(|line| line.split(':').next() == Some(name))?.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    ids("postgres").or_else(|| ids("nobody")).or(Some((65_534, 65_534)))
}

/// Everything but letters, digits and `-._` as `%XX`, as connection URLs want it.
pub(in crate::stack) fn percent(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_server_comes_first_and_its_password_is_a_secret() {
        let variables = |name: &str| match name {
            "PGHOST" => Some("db.example".to_owned()),
            "PGPASSWORD" => Some("p@ss".to_owned()),
            _ => None,
        };
        let source = find(variables).unwrap();
        assert_eq!(Databases::secrets(&source), ["p@ss", "p%40ss"]);
        let databases = Databases { source, socket: PathBuf::new(), names: Vec::new(), spawn: None };
        assert_eq!(databases.url("one"), "postgres://postgres:p%40ss@db.example:5432/one");
    }

    #[test]
    fn a_socket_directory_is_encoded() {
        let source = Source::Installed(PathBuf::from("/bin"));
        let databases =
            Databases { source, socket: PathBuf::from("/tmp/x/pg"), names: Vec::new(), spawn: None };
        assert_eq!(databases.url("host_0"), "postgres://proofload@%2Ftmp%2Fx%2Fpg/host_0");
    }
}
