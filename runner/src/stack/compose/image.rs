//! The build context of our image: programs as built, and what they need to run.
//!
//! Static programs need nothing. For others the shared libraries of this machine go along, as the loader resolves them:
//! the image starts `FROM scratch`, since no base image may be fetched.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::RunnerError;
use crate::stack::programs::Programs;

/// Recipe, committed beside the Compose file.
const RECIPE: &str = "stack.dockerfile";

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
    for library in libraries {
        let target = context.join("root").join(library.strip_prefix("/").unwrap_or(&library));
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        std::fs::copy(&library, &target).map_err(failed(&library))?;
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
