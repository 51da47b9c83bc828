//! Build of the pages during a run.

use std::path::Path;

use crate::error::DemoError;
use crate::process::Process;
use crate::setup::Setup;

/// Build of the pages, if any; dropping it ends the build.
#[derive(Default)]
pub struct Pages {
    builder: Option<Process>,
    failed: Option<String>,
}

impl Pages {
    /// Starts the build that `setup` names, if any. Its output goes to files in `dir`.
    ///
    /// # Errors
    /// [`DemoError::System`]: it could not be started.
    pub fn build(setup: &Setup, dir: &Path) -> Result<Self, DemoError> {
        let Some((program, args)) = setup.builder.split_first() else { return Ok(Self::default()) };
        let builder = Process::spawn_with_children(Path::new(program), args, &dir.join("pages"))?;
        Ok(Self { builder: Some(builder), failed: None })
    }

    /// Returns true while a build is running.
    pub fn are_built(&self) -> bool {
        self.builder.is_some()
    }

    /// Returns a sentence, once, about the end of the build.
    pub fn news(&mut self) -> Option<String> {
        let code = self.builder.as_mut()?.exit_code()?;
        let words = self.builder.take()?.last_words();
        if code == 0 {
            return Some("the pages are there".to_owned());
        }
        let failed = format!("the pages could not be built: {}", words.trim_start_matches("error: "));
        self.failed = Some(failed.clone());
        Some(failed)
    }

    /// Checks that the build did not fail.
    ///
    /// # Errors
    /// [`DemoError::System`]: it failed.
    pub fn verdict(&self) -> Result<(), DemoError> {
        self.failed.clone().map_or(Ok(()), |failed| Err(DemoError::System(failed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_builder_there_is_no_news() {
        let mut pages = Pages::default();
        assert_eq!((pages.are_built(), pages.news()), (false, None));
        assert!(pages.verdict().is_ok());
    }
}
