"""What a reviewer looks for in a diff: a table of rules over syntax trees, and nothing about time.

    source      a program's trees with names resolved; which functions train; what a suspect is
    escapes     clocks, patched modules, reflection, hidden code, processes, environment, forged output
    storage     reading, writing and looking for files by any function or method, caches that outlive a run
    places      where a value comes from: what stands behind a name
    powers      calls that change the machine, places of the system
    learning    gradients cut off, frozen weights, hidden NaN, lower precision, fewer tokens or steps
    parts       parts of loss, layers, gradients or optimizer state that are left out or reached into
    comparison  what was there and is gone or different: calls, hyper-parameters, optimizer, loss, seeds
    files       paths out of scope, links, blobs, files that Python runs by itself
"""
