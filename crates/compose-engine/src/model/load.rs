//! Files in, project out: read, expand, interpolate, bring into long form, merge, type, check.

use std::path::{Path, PathBuf};

use super::expand::Groups;
use super::interpolate::Variables;
use super::tree::{self, Node};
use super::{Project, canon, check, expand, overlay, read};
use crate::error::{ComposeError, FileError};

/// One file: where it is and what it says.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path.
    pub path: PathBuf,
    /// Text.
    pub text: String,
}

/// What a project is made from.
#[derive(Clone, Debug, Default)]
pub struct Loader {
    /// Files, later ones over earlier ones.
    pub sources: Vec<Source>,
    /// The only variables that values may use.
    pub variables: Variables,
    /// Members of `x-each` groups.
    pub groups: Groups,
    /// Profiles that are on.
    pub profiles: Vec<String>,
    /// Services may ask for all rights.
    pub allow_privileged: bool,
}

impl Loader {
    /// Adds a file from the disk.
    ///
    /// # Errors
    /// [`ComposeError::Io`] when it can't be read.
    pub fn file(mut self, path: &Path) -> Result<Self, ComposeError> {
        let text = std::fs::read_to_string(path).map_err(ComposeError::io(path))?;
        self.sources.push(Source { path: path.to_path_buf(), text });
        Ok(self)
    }

    /// Builds the project.
    ///
    /// # Errors
    /// [`FileError`] with file and line.
    pub fn load(&self) -> Result<Project, FileError> {
        let mut merged: Option<Node> = None;
        for source in &self.sources {
            let mut root = tree::read(&source.path.display().to_string(), &source.text)?;
            expand::file(&mut root, &self.variables, &self.groups)?;
            canon::file(&mut root)?;
            merged = Some(match merged {
                None => root,
                Some(base) => overlay::merge(base, root),
            });
        }
        let at = tree::Place { file: "(no file)".into(), line: 1 };
        let root = merged.ok_or_else(|| FileError::new(&at, "no Compose file is given"))?;
        let dir = self.sources[0].path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let env_file = |path: &Path| std::fs::read_to_string(path).map_err(|error| error.to_string());
        let mut project = read::project(&root, &dir, &env_file, &self.profiles)?;
        project.files = self.sources.iter().map(|source| source.path.clone()).collect();
        check::project(&mut project, self.allow_privileged)?;
        Ok(project)
    }
}
