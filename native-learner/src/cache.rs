//! Cache of frozen weights, so that they are fetched once.

use std::path::PathBuf;
use std::rc::Rc;

use archipelago::run::{Folder, Shelf, default_shelf};
use archipelago_cli::Bytes;
use clap::Args;

/// What is kept on the disk, and how much of it.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct CacheArgs {
    /// Folder that keeps the frozen weights of runs of adapters, so that they are fetched once; learners of this
    /// machine may share it [default: archipelago/frozen in the XDG cache folder]
    #[arg(long, value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// Size of that folder at most, as 500MB or 8GiB: what was written first goes first; 0 keeps nothing
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    cache_max: Bytes,
}

impl CacheArgs {
    /// Returns the cache, or `None` if caching is off or there is no home folder.
    pub(crate) fn shelf(&self) -> Option<Rc<dyn Shelf>> {
        let folder = self.cache_dir.clone().or_else(|| default_shelf(|name| std::env::var(name).ok()))?;
        (self.cache_max.0 > 0).then(|| Rc::new(Folder::new(folder, self.cache_max.0)) as Rc<dyn Shelf>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_of_no_bytes_is_none() {
        let args = |cache_max| CacheArgs { cache_dir: Some("cache".into()), cache_max: Bytes(cache_max) };
        assert!(args(0).shelf().is_none());
        let shelf = args(1 << 20).shelf().unwrap();
        assert!(shelf.has_room(1 << 20) && !shelf.has_room(1 + (1 << 20)));
    }
}
