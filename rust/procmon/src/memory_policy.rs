//! Which memory nodes a thread's new pages come from.

use std::io;

/// Bind the calling thread's future pages to `nodes` (`set_mempolicy`, `MPOL_BIND`).
///
/// Threads and processes that it starts afterwards inherit the policy, across `exec` as well. Pages that are
/// there already stay where they are, and so do pages of the page cache.
///
/// # Errors
/// `EINVAL` for no node or a node this machine lacks, `EPERM` where a sandbox forbids the call, `ENOSYS` in a
/// kernel without NUMA.
pub fn bind_memory_to_nodes(nodes: &[u32]) -> io::Result<()> {
    if nodes.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    crate::os::set_memory_policy(libc::MPOL_BIND, &mask(nodes)?)
}

/// Give the calling thread the default policy again: pages come from the node it runs on.
///
/// # Errors
/// `EPERM` and `ENOSYS` as [`bind_memory_to_nodes`].
pub fn unbind_memory() -> io::Result<()> {
    crate::os::set_memory_policy(libc::MPOL_DEFAULT, &[])
}

/// Nodes as bits. No kernel is built for more than 1024.
fn mask(nodes: &[u32]) -> io::Result<Vec<libc::c_ulong>> {
    let mut words = Vec::new();
    for node in nodes.iter().map(|node| *node as usize) {
        if node >= 1024 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let (word, bit) = (
            node / libc::c_ulong::BITS as usize,
            node % libc::c_ulong::BITS as usize,
        );
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        words[word] |= 1 << bit;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_become_bits() {
        assert_eq!(mask(&[0, 3]).unwrap(), [0b1001]);
        assert_eq!(mask(&[65, 1]).unwrap(), [0b10, 0b10]);
        assert_eq!(
            mask(&[1024]).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
    }

    #[test]
    fn no_node_and_a_node_that_is_not_there_are_refused() {
        for nodes in [&[][..], &[1023], &[5000]] {
            let error = bind_memory_to_nodes(nodes).unwrap_err();
            assert!(error.raw_os_error().is_some(), "{nodes:?}: {error}");
        }
    }
}
