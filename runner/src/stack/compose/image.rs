//! The build context of our image: programs as built, and what they need to run.
//!
//! Static programs need nothing. For others the shared libraries of this machine go along, as the loader resolves them:
//! the image starts `FROM scratch`, since no base image may be fetched.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::RunnerError;
use crate::stack::postgres::{self, Source};
use crate::stack::programs::Programs;

use super::project::POSTGRES;

/// Recipes, committed beside the Compose file.
const RECIPE: &str = "stack.dockerfile";
const POSTGRES_RECIPE: [&str; 2] = ["postgres.dockerfile", "postgres-start.sh"];
/// Programs of the Postgres image, and the modules that a new database needs.
const POSTGRES_PROGRAMS: [&str; 3] = ["postgres", "initdb", "psql"];
const POSTGRES_MODULES: [&str; 2] = ["plpgsql.so", "dict_snowball.so"];
/// Shell of the Postgres image: `initdb` starts the server through it.
const SHELL: &str = "/bin/sh";
/// Its user, who needs a name there.
const POSTGRES_PASSWD: &str = "postgres:x:70:70::/var/lib/postgresql:/bin/sh\n";

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> RunnerError {
    let path = path.display().to_string();
    move |error| RunnerError::environment(format!("laying the build context: {path}: {error}"))
}

/// Lays the context: recipe, `bin/`, `root/` and `data/`.
///
/// # Errors
/// [`RunnerError::Environment`] for a missing recipe or program, or a full disk.
pub fn lay(programs: &Programs, names: &[&str], recipes: &Path, context: &Path) -> Result<(), RunnerError> {
    for folder in ["bin", "root", "data"] {
        let path = context.join(folder);
        std::fs::create_dir_all(&path).map_err(failed(&path))?;
        // The builder knows files only: an empty folder would not be there.
        std::fs::write(path.join(".keep"), "").map_err(failed(&path))?;
    }
    let recipe = recipes.join(RECIPE);
    std::fs::copy(&recipe, context.join(RECIPE)).map_err(failed(&recipe))?;
    let mut libraries = BTreeSet::new();
    for name in names {
        let program = programs.path(name);
        place(&program, &context.join("bin").join(name))?;
        libraries.extend(needed(&program)?);
    }
    libraries.iter().try_for_each(|library| at_its_path(library, &context.join("root")))
}

/// Copies a file to where it was, under another root.
fn at_its_path(file: &Path, root: &Path) -> Result<(), RunnerError> {
    let target = root.join(file.strip_prefix("/").unwrap_or(file));
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(failed(parent))?;
    }
    std::fs::copy(file, &target).map(drop).map_err(failed(file))
}

/// Where Postgres comes from: the user's image (nothing to build), or the folder of installed binaries.
///
/// # Errors
/// In words, when there is neither.
pub fn postgres_source(images: &[(String, String)]) -> Result<Option<PathBuf>, String> {
    if images.iter().any(|(service, _)| service == POSTGRES) {
        return Ok(None);
    }
    // A server that `PG*` names is out of a container's reach: only installed binaries count.
    let found = postgres::find(|name| (name != "PGHOST").then(|| std::env::var(name).ok()).flatten());
    let folder = match found {
        // A folder of links is not where the programs find their shared files.
        Ok(Source::Installed(folder)) => std::fs::canonicalize(folder.join("postgres")).ok(),
        _ => None,
    };
    let folder = folder.and_then(|program| program.parent().map(Path::to_path_buf));
    folder.filter(|folder| folder.join("psql").is_file() && folder.join("pg_config").is_file()).map(Some).ok_or_else(
        || {
            "install the server with its client (`postgres`, `initdb`, `psql` and `pg_config` in one folder), or name an \
             image: --image postgres=postgres:16"
                .to_owned()
        },
    )
}

/// Lays the context of the Postgres image from the binaries in a folder.
///
/// # Errors
/// [`RunnerError::Environment`] for a file of the installation that is not where it says.
pub fn lay_postgres(folder: &Path, recipes: &Path, context: &Path) -> Result<(), RunnerError> {
    let root = context.join("root");
    for path in [&root, &context.join("data")] {
        std::fs::create_dir_all(path).map_err(failed(path))?;
    }
    std::fs::write(context.join("data/.keep"), "").map_err(failed(context))?;
    for name in POSTGRES_RECIPE {
        std::fs::copy(recipes.join(name), context.join(name)).map_err(failed(&recipes.join(name)))?;
    }
    // Programs look for their shared files where they were installed.
    let shared = told(folder, "--sharedir")?;
    let modules = told(folder, "--pkglibdir")?;
    tree(&shared, &root)?;
    let mut files: Vec<PathBuf> = POSTGRES_PROGRAMS.iter().map(|name| folder.join(name)).collect();
    files.extend(POSTGRES_MODULES.iter().map(|name| modules.join(name)));
    files.push(PathBuf::from(SHELL));
    let mut all: BTreeSet<PathBuf> = BTreeSet::new();
    for file in files {
        all.extend(needed(&file)?);
        all.insert(file);
    }
    all.iter().try_for_each(|file| at_its_path(file, &root))?;
    let passwd = root.join("etc/passwd");
    std::fs::create_dir_all(root.join("etc")).map_err(failed(&passwd))?;
    std::fs::write(&passwd, POSTGRES_PASSWD).map_err(failed(&passwd))
}

/// What `pg_config` of an installation says.
fn told(folder: &Path, flag: &str) -> Result<PathBuf, RunnerError> {
    let program = folder.join("pg_config");
    let output = std::process::Command::new(&program).arg(flag).output().map_err(failed(&program))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn tree(folder: &Path, root: &Path) -> Result<(), RunnerError> {
    for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        if path.is_dir() {
            tree(&path, root)?;
        } else {
            at_its_path(&path, root)?;
        }
    }
    Ok(())
}

/// A hard link where the file systems allow it: programs are tens of megabytes each.
fn place(from: &Path, to: &Path) -> Result<(), RunnerError> {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).map_err(failed(from))?;
    }
    Ok(())
}

/// Paths of the shared libraries of a program, its loader included; none for a static one.
fn needed(program: &Path) -> Result<Vec<PathBuf>, RunnerError> {
    let output = std::process::Command::new("ldd").arg(program).env("LC_ALL", "C").output();
    let output = output.map_err(failed(Path::new("ldd")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let told = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
    if told.contains("not a dynamic executable") || told.contains("statically linked") {
        return Ok(Vec::new());
    }
    if !output.status.success() {
        return Err(RunnerError::environment(format!("ldd {}: {}", program.display(), told.trim())));
    }
    paths(&text).map_err(|missing| {
        let program = program.display();
        RunnerError::environment(format!("{program} needs {missing}, which is not on this machine"))
    })
}

/// `name => /path (0x…)`, `/path (0x…)`; the kernel's own object has no path.
fn paths(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, rest) =
            line.split_once("=>").map_or((line, line), |(name, rest)| (name.trim(), rest.trim()));
        if rest.starts_with("not found") {
            return Err(name.to_owned());
        }
        let path = rest.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_s_list_is_read() {
        let text =
            "\tlinux-vdso.so.1 (0x01)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x02)\n\t/lib64/ld.so.2 (0x03)\n";
        assert_eq!(paths(text).unwrap(), [Path::new("/lib/x/libc.so.6"), Path::new("/lib64/ld.so.2")]);
        assert_eq!(paths("\tliba.so => not found\n").unwrap_err(), "liba.so");
    }
}
