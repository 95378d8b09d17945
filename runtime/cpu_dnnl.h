/* cpu_dnnl.h - large products and convolutions through oneDNN, where it is installed. Not public.
 *
 * The library is found at run time; without it, or where it has only a reference kernel for a shape, the generated loops run. */
#ifndef TRAINC_CPU_DNNL_H
#define TRAINC_CPU_DNNL_H
#include "trainc_program.h"
#include <stdbool.h>
typedef struct Onednn Onednn;
typedef struct OnednnCall OnednnCall;
Onednn *onednn_open(void);                 /* NULL: not installed, or of a version that we do not speak */
void onednn_close(Onednn *);
const char *onednn_version(const Onednn *, char *buf, size_t cap);
/* onednn_prepare - the primitive of one launch, bound to its buffers. NULL: not supported here, use the kernel's own loops.
 *   args     the launch's buffers, as the kernel gets them
 *   is_pack  the launch packs args[0] into args[1] for `c` */
OnednnCall *onednn_prepare(Onednn *, const trainc_contraction *c, bool is_pack, void *const *args);
/* onednn_scratch_query - what a launch of `c` will ask for, without making it: the most over plain and transposed operands of a product.
 *   0 where the library would not be used. Depends on the library and on the number of threads. Cost: under a millisecond. */
uint64_t onednn_scratch_query(Onednn *, const trainc_contraction *c);
/* onednn_packed_query - the bytes of operand b in the library's own layout: the most over plain and transposed operands of a product. */
uint64_t onednn_packed_query(Onednn *, const trainc_contraction *c);
uint64_t onednn_scratch_bytes(const OnednnCall *);
bool onednn_set_scratch(OnednnCall *, void *); /* false: no memory */
/* onednn_move - binds the call to other buffers of the launch; its scratch stays. false: the library refused. Allocates nothing. */
bool onednn_move(OnednnCall *, void *const *args);
bool onednn_run(OnednnCall *);
void onednn_call_free(OnednnCall *);
#endif
