import time; t=time.time()
from tools.docs import method_pages, part_pages, catalogue
from tools.docs.evidence import read_evidence
from tools.docs.compatibility import read_compatibility
print(time.time()-t)
ev=read_evidence(); print(len(ev), time.time()-t)
co=read_compatibility()
import pathlib
out=pathlib.Path('/tmp/pages'); (out/'parts').mkdir(parents=True,exist_ok=True)
for n,m in catalogue.list_methods().items():
    (out/f'{n}.md').write_text(method_pages.make_page(m,ev,co))
print(time.time()-t)
for n,k in catalogue.list_parts().items():
    (out/'parts'/f'{n}.md').write_text(part_pages.make_page(k,ev,co))
(out/'index.md').write_text(method_pages.make_index()); (out/'parts/index.md').write_text(part_pages.make_index())
print(time.time()-t)
