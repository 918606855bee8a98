//! Functions of the application.

use std::{fmt, ops::Deref, ptr, sync::Arc};

/// A function of the application that several settings may share. Two are equal if they are one [`Arc`].
pub struct SharedFn<F: ?Sized>(Arc<F>);

impl<F: ?Sized> From<Arc<F>> for SharedFn<F> {
    fn from(function: Arc<F>) -> Self {
        Self(function)
    }
}

impl<F: ?Sized> Clone for SharedFn<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: ?Sized> Deref for SharedFn<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.0
    }
}

impl<F: ?Sized> PartialEq for SharedFn<F> {
    fn eq(&self, other: &Self) -> bool {
        ptr::addr_eq(&*self.0, &*other.0)
    }
}

impl<F: ?Sized> Eq for SharedFn<F> {}

impl<F: ?Sized> fmt::Debug for SharedFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("function")
    }
}
