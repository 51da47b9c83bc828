//! Cache of frozen weights, so that they are fetched once.

use std::path::PathBuf;
use std::rc::Rc;

use archipelago::run::{Folder, WeightCache, default_shelf};
use archipelago_cli::Bytes;
use clap::Args;

/// Settings of the cache of frozen weights.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct CacheArgs {
    /// Folder that caches the frozen weights of adapter (LoRA) runs; learners of this machine may share it [default:
    /// archipelago/frozen in the XDG cache folder]
    #[arg(long, value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// Largest size of that folder, as 500MB or 8GiB: the oldest files are deleted first; 0 turns the cache off
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    cache_max: Bytes,
}

impl CacheArgs {
    /// Returns the cache, or `None` if caching is off or there is no home folder.
    pub(crate) fn shelf(&self) -> Option<Rc<dyn WeightCache>> {
        let folder = self.cache_dir.clone().or_else(|| default_shelf(|name| std::env::var(name).ok()))?;
        (self.cache_max.0 > 0).then(|| Rc::new(Folder::new(folder, self.cache_max.0)) as Rc<dyn WeightCache>)
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
